"""Asking Slurm rarely, and living with every kind of answer."""

import json

import pytest

from tests.unit.cli.status_runs import fake_slurm, submit_run, without_slurm
from verl_hpc.runs.jobs import record_job
from verl_hpc.runs.queue import CACHE, EVERY_S, QueuedJob, ask_slurm

PENDING = 'echo "4711|PENDING|Priority|2027-01-15T09:00:00"'


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path):
    return submit_run(tmp_path, "4711")


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """`slurm(squeue, sacct)` puts both programs on PATH."""
    return lambda squeue="exit 1", sacct="exit 1": fake_slurm(
        tmp_path, monkeypatch, squeue=squeue, sacct=sacct
    )


@pytest.fixture
def calls(tmp_path):
    """How the programs were called."""
    log = tmp_path / "calls"
    return lambda: log.read_text().splitlines() if log.exists() else []


def states(answer):
    return {job: queued.state for job, queued in answer.jobs.items()}


def test_a_job_that_waits(run, slurm, calls):
    slurm(PENDING)
    answer = ask_slurm(run, ["4711"])
    assert answer.jobs == {"4711": QueuedJob("PENDING", "Priority", "2027-01-15T09:00:00")}
    assert answer.problem == ""
    assert "4711" in json.loads((run / "job" / CACHE).read_text())["jobs"], "all share an answer"
    assert calls() == ["squeue --array --noheader --jobs=4711 --states=all --format=%i|%T|%r|%S"]


def test_jobs_that_are_over_are_looked_up_in_accounting(run, slurm, calls):
    squeue = 'echo "CLUSTER: c2"; echo "12|RUNNING|None|N/A"'
    slurm(squeue, 'echo "11|CANCELLED by 1000"; echo "10|TIMEOUT"')
    answer = ask_slurm(run, ["10", "11", "12"])
    assert states(answer) == {"10": "TIMEOUT", "11": "CANCELLED", "12": "RUNNING"}
    assert answer.jobs["12"] == QueuedJob("RUNNING"), "what squeue leaves open is left out"
    assert calls()[1].endswith("--jobs=10,11")


def test_squeue_forgets_a_job_that_is_over(run, slurm):
    forgotten = 'echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1'
    slurm(forgotten, 'echo "4711|FAILED"')
    answer = ask_slurm(run, ["4711"])
    assert (answer.jobs["4711"].state, answer.problem) == ("FAILED", "")


def test_each_job_is_asked_about_on_its_own_cluster(run, slurm, calls):
    """What accounting knows is asked by an option, since sacct reads no SLURM_CLUSTERS."""
    record_job(run / "job", {"job_id": "4711", "cluster": "c2"})
    record_job(run / "job", {"job_id": "12"})
    slurm(
        '[ -z "$SLURM_CLUSTERS" ] && echo "12|RUNNING|None|N/A"; echo "CLUSTER: c2"',
        'case "$*" in *--clusters=c2*) echo "4711|TIMEOUT" ;; *) echo "4711|FAILED" ;; esac',
    )
    assert states(ask_slurm(run, ["4711", "12"])) == {"4711": "TIMEOUT", "12": "RUNNING"}
    assert len(calls()) == 3


def test_a_cluster_without_accounting(run, slurm):
    slurm("true", "echo 'Slurm accounting storage is disabled' >&2; exit 1")
    answer = ask_slurm(run, ["4711"])
    assert answer.jobs == {}
    assert "accounting storage is disabled" in answer.problem


def test_a_controller_that_is_down_is_not_asked_again_at_once(run, slurm, calls, clock):
    slurm("echo 'Unable to contact' >&2; exit 1")
    for _ in range(3):
        assert "Unable to contact" in ask_slurm(run, ["4711"], clock=clock).problem
    assert len(calls()) == 1


def test_without_slurm_nothing_is_asked_and_nothing_kept(run, tmp_path, monkeypatch):
    without_slurm(tmp_path, monkeypatch)
    answer = ask_slurm(run, ["4711"])
    assert (answer.jobs, answer.problem) == ({}, "squeue is not on PATH here")
    assert not (run / "job" / CACHE).exists()


def test_slurm_is_asked_every_30_seconds_at_most(run, slurm, calls, clock):
    slurm(PENDING)
    assert ask_slurm(run, []).jobs == {} and calls() == [], "no question about no jobs"
    first = ask_slurm(run, ["4711"], clock=clock)
    clock.now += EVERY_S - 0.1
    assert ask_slurm(run, ["4711"], clock=clock) == first
    assert ask_slurm(run, ["4711", "4712"], clock=clock) == first, "another question waits, too"
    assert len(calls()) == 1
    clock.now += 0.2
    ask_slurm(run, ["4711"], clock=clock)
    assert len(calls()) == 2


def test_an_answer_that_cannot_be_kept_with_the_run_is_the_users(tmp_path, slurm, calls, clock):
    slurm(PENDING)
    for _ in range(2):  # this directory has no job/
        assert "4711" in ask_slurm(tmp_path / "runs", ["4711"], clock=clock).jobs
    assert len(calls()) == 1
    assert len(list((tmp_path / "cache/verl_hpc").iterdir())) == 1


def test_an_answer_from_the_future_does_not_silence_us(run, slurm, calls, clock):
    slurm(PENDING)
    clock.now += 86400
    ask_slurm(run, ["4711"], clock=clock)
    clock.now -= 86400
    ask_slurm(run, ["4711"], clock=clock)
    assert len(calls()) == 2
