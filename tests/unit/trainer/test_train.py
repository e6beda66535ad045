"""What a start says about its run directory."""

import os
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.unit.config.trees import parse
from tests.unit.waiting import within
from verl_hpc.errors import ConfigError
from verl_hpc.runs.lives import LifeRecord, read_lives
from verl_hpc.trainer.train import _begin_life, _run_directory


def alone():
    """The session of a rank that is the only one."""
    control = SimpleNamespace(together=lambda work: work())
    world = SimpleNamespace(rank=0, size=2, device="cpu")
    return SimpleNamespace(world=world, control=control, watchdog=SimpleNamespace(errands=[]))


@pytest.mark.parametrize(
    ("mode", "told"), [(None, False), (0o700, False), (0o750, True), (0o711, True)]
)
def test_a_run_directory_that_others_may_enter_is_told_about(tmp_path, caplog, mode, told):
    config = parse(directory=str(tmp_path))
    if mode is not None:
        config.run_directory.mkdir()
        config.run_directory.chmod(mode)
    with _run_directory(alone(), config):
        assert config.run_directory.stat().st_mode & 0o777 == (mode or 0o700)
    assert (f"other users may enter {config.run_directory}, " in caplog.text) == told
    assert caplog.text.count("chmod 700") == told


@pytest.mark.parametrize(
    ("umask", "mode", "advice"),
    [(0o027, 0o750, None), (0o027, 0o755, "750"), (0o007, 0o770, None), (0o077, 0o750, "700")],
)
def test_those_whom_the_site_profile_lets_in_may_enter(
    tmp_path, caplog, monkeypatch, umask, mode, advice
):
    config = parse(directory=str(tmp_path))
    config.run_directory.mkdir()
    config.run_directory.chmod(mode)
    monkeypatch.setenv("VERL_HPC_ATTEMPT", str(tmp_path / "attempts/0"))
    before = os.umask(umask)
    try:
        with _run_directory(alone(), config):
            assert os.umask(umask) == umask, "looking changes nothing"
    finally:
        os.umask(before)
    told = [word for word in ("700", "750", "770") if f"chmod {word} " in caplog.text]
    assert told == ([] if advice is None else [advice])


FILES = """
    config.yaml metrics.jsonl flow.txt facts.json report.html heartbeat.json ranks.json
    request_stop.json request_save.json
"""
IN_THE_WAY = {
    "pipe": os.mkfifo,
    "directory": Path.mkdir,
    "link": lambda path: path.symlink_to("/nowhere/x"),
}


@pytest.mark.parametrize("make", IN_THE_WAY.values(), ids=IN_THE_WAY)
@pytest.mark.parametrize("name", FILES.split())
def test_what_a_run_cannot_write_is_named_before_its_work(tmp_path, name, make):
    config = parse(directory=str(tmp_path))
    config.run_directory.mkdir()
    make(config.run_directory / name)
    with pytest.raises(ConfigError, match=f"{name}: not a regular file.*delete it"):
        within(5, _run_directory(alone(), config).__enter__)
    assert [p.name for p in config.run_directory.iterdir()] == [name]


def earlier_start(config, hours, ready_s):
    now = time.time() - 3600 * hours
    config.run_directory.mkdir()
    life = LifeRecord(config.run_directory, 1, on_gpus=True, clock=lambda: now)
    now += ready_s
    life.resume(0, 0.0)
    now = time.time()
    life.end("restart")


@pytest.mark.parametrize("most, shown, used", [(2.0, "2", "1.9"), (98765.43, "98765.43", "98,765")])
def test_a_start_that_would_use_up_its_hours_before_the_first_step_is_refused(
    tmp_path, most, shown, used
):
    config = parse(directory=str(tmp_path), runtime__max_gpu_hours=most)
    earlier_start(config, hours=most - 0.1, ready_s=600)
    told = rf"max_gpu_hours = {shown}: the run's 1 earlier starts have used {used}, .*; set it hi"
    with pytest.raises(ConfigError, match=told):
        _begin_life(alone(), config)
    assert read_lives(config.run_directory)[-1].hours < 0.01


def test_a_start_with_hours_left_is_recorded_from_time_to_time(tmp_path):
    config = parse(directory=str(tmp_path), runtime__max_gpu_hours=2.0)
    earlier_start(config, hours=1.0, ready_s=60)
    session = alone()
    life = _begin_life(session, config)
    assert session.watchdog.errands == [life.tick]
    assert life.ceiling(2.0) - time.time() == pytest.approx(1800, abs=60)
    session.world.rank = 1
    assert _begin_life(session, config) is None
