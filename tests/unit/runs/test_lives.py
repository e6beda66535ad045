"""What a run records of each of its starts, and what adds up from that."""

import json
import os

import pytest

from tests.unit.programs import umask
from verl_hpc.runs.lives import EVERY_S, LifeRecord, lost_seconds, read_lives


def test_a_start_without_slurm_counts_ranks_from_its_own_beginning(tmp_path, clock):
    began = clock.now
    life = LifeRecord(tmp_path, 4, on_gpus=False, clock=clock)
    clock.now += 1800
    life.end("finished")
    clock.now += 60
    life.end("failed")
    (read,) = read_lives(tmp_path)
    assert (read.began, read.hours, read.unit, read.outcome) == (began, 2.0, "rank", "finished")


def test_a_group_may_read_hours_where_the_umask_lets_it(tmp_path):
    with umask(0o027):
        LifeRecord(tmp_path, 1, on_gpus=False)
    modes = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert modes == {"lives": 0o750, "0.json": 0o640}


def test_a_start_that_is_killed_leaves_its_last_sign_of_life(tmp_path, clock):
    life = LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    for _ in range(7):
        clock.now += EVERY_S / 2
        life.tick()
    (read,) = read_lives(tmp_path)
    assert clock.now - read.seen <= EVERY_S
    assert (read.unit, read.outcome) == ("GPU", None)


def test_a_job_counts_from_its_start_and_with_all_its_gpus(tmp_path, clock, monkeypatch):
    attempt = tmp_path / "job/attempts/0"
    attempt.mkdir(parents=True)
    (attempt.parent / "latest").symlink_to("0")
    times = (clock.now - 120, clock.now - 120)
    os.utime(attempt.parent / "latest", times, follow_symlinks=False)
    monkeypatch.setenv("SLURM_GPUS_ON_NODE", "4")
    monkeypatch.setenv("SLURM_JOB_NUM_NODES", "2")
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    LifeRecord(tmp_path, 6, on_gpus=True, clock=clock)
    assert read_lives(tmp_path)[-1].began == clock.now, "others may use the allocation, too"
    monkeypatch.setenv("VERL_HPC_ATTEMPT", str(attempt))
    LifeRecord(tmp_path, 6, on_gpus=True, clock=clock)
    life = read_lives(tmp_path)[-1]
    assert (life.began, life.devices, life.job_id) == (clock.now - 120, 8, "4711")
    monkeypatch.setenv("SLURM_JOB_START_TIME", str(int(clock.now) - 180))
    LifeRecord(tmp_path, 6, on_gpus=True, clock=clock)
    assert read_lives(tmp_path)[-1].began == int(clock.now) - 180


def test_hours_of_earlier_starts_bring_the_ceiling_nearer(tmp_path, clock):
    first = LifeRecord(tmp_path, 2, on_gpus=True, clock=clock)
    assert first.ceiling(3.0) == clock.now + 1.5 * 3600
    assert first.usual_start_s == 0.0
    clock.now += 600
    first.resume(0, 0.0)
    clock.now += 1200
    first.end("restart")
    second = LifeRecord(tmp_path, 4, on_gpus=True, clock=clock)
    assert (second.ceiling(3.0), second.usual_start_s) == (clock.now + 0.5 * 3600, 600.0)


def test_work_that_is_lost(tmp_path, clock):
    """A step under way when the run was killed, and the two before it that nobody had saved."""
    first = LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    first.resume(0, 0.0)
    first.begin_step()
    clock.now += 100
    first.end_step()
    first.begin_step()
    clock.now += EVERY_S
    first.tick()
    assert lost_seconds(read_lives(tmp_path), None) == 0.0
    assert lost_seconds(read_lives(tmp_path), 100.0) == 110.0
    second = LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    second.resume(0, 100.0)
    assert lost_seconds(read_lives(tmp_path), None) == 110.0
    second.begin_step()
    clock.now += 50
    second.end_step()
    second.end("restart")
    assert lost_seconds(read_lives(tmp_path), 0.0) == 110.0


def test_a_step_that_all_ranks_gave_up_is_lost(tmp_path, clock):
    life = LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    life.begin_step()
    clock.now += 30
    life.end("restart")
    assert lost_seconds(read_lives(tmp_path), 0.0) == 30.0


def test_an_exception_ends_it_as_failed(tmp_path, clock):
    with pytest.raises(ValueError), LifeRecord(tmp_path, 1, on_gpus=True, clock=clock):
        raise ValueError
    assert read_lives(tmp_path)[0].outcome == "failed"


@pytest.mark.parametrize("changes", [{"devices": 0}, {"unit": "mile"}, {"seen": 0}])
def test_what_is_no_record_is_left_out(tmp_path, clock, changes):
    LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    file = tmp_path / "lives/0.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | changes))
    assert len(read_lives(tmp_path)) == 1
    file.write_text("{")
    (tmp_path / "lives/x.json").write_text("{}")
    assert len(read_lives(tmp_path)) == 1
    assert read_lives(tmp_path / "none") == []


def test_a_directory_that_cannot_be_written_ends_no_run(tmp_path, clock, caplog):
    life = LifeRecord(tmp_path, 1, on_gpus=True, clock=clock)
    (tmp_path / "lives/0.json").unlink()
    (tmp_path / "lives/0.json").mkdir()
    for _ in range(2):
        clock.now += EVERY_S
        life.tick()
    assert caplog.text.count("the hours of this start are not recorded") == 1
