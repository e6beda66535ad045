"""heartbeat.json: when it is written, what it says, and what of it can be trusted."""

import json
import logging
import os
import socket
from types import SimpleNamespace

import pytest

from tests.unit.waiting import wait_for
from verl_hpc.config import regular_file
from verl_hpc.runs import heartbeat
from verl_hpc.runs.contract import ATTEMPT
from verl_hpc.runs.heartbeat import FAILED, FILE, Heartbeat, read_heartbeat


def test_the_number_of_steps_may_be_known_later(tmp_path, clock):
    heart = Heartbeat(tmp_path, clock)
    heart.beat("read model, data and reward", 0)
    assert read_heartbeat(tmp_path).total_steps is None
    heart.expect(12)
    clock.now += 10
    heart.beat("rollout", 1)
    assert read_heartbeat(tmp_path).total_steps == 12


def test_what_a_heartbeat_says(tmp_path, clock):
    Heartbeat(tmp_path, clock, total_steps=7).beat("rollout", 3)
    host = socket.gethostname()
    facts = {
        "time": 1000.0, "step": 3, "total_steps": 7, "operator": "rollout", "host": host,
        "nodes": host, "pid": os.getpid(), "job_id": None, "attempt": None, "restarts": 0,
        "started": 1000.0, "outcome": None, "placements": [],
    }  # fmt: skip
    assert json.loads((tmp_path / FILE).read_text()) == facts
    assert vars(read_heartbeat(tmp_path)) == facts | {"placements": ()}


VARIABLES = [("2", "runs/x/job/attempts/3", 2, 3), *((v, v, 0, None) for v in ("", "x", "-1"))]


@pytest.mark.parametrize(("count", "directory", "restarts", "attempt"), VARIABLES)
def test_the_batch_scripts_variables(tmp_path, monkeypatch, count, directory, restarts, attempt):
    monkeypatch.setenv("SLURM_JOB_ID", "4711")
    monkeypatch.setenv("SLURM_RESTART_COUNT", count)
    monkeypatch.setenv(ATTEMPT, directory)
    Heartbeat(tmp_path).beat("rollout", 1)
    spoken = read_heartbeat(tmp_path)
    assert (spoken.job_id, spoken.restarts, spoken.attempt) == ("4711", restarts, attempt)


@pytest.fixture
def timers(monkeypatch):
    """Timers that have been started, none of which ever goes off."""
    started = []
    timer = SimpleNamespace(start=lambda: started.append("one"), cancel=lambda: None)
    monkeypatch.setattr(heartbeat.threading, "Timer", lambda *_: timer)
    return started


def test_how_often_it_is_written(tmp_path, clock, timers):
    """The operator stays, another one begins, or the clock is set back."""
    for operator, after, step in (
        ("rollout", 0.9, 1),
        ("rollout", 1.0, 2),
        ("reward", 0.4, 1),
        ("reward", 0.5, 2),
        ("rollout", -3600, 2),
    ):
        heart = Heartbeat(tmp_path, clock)
        heart.beat("rollout", 1)
        clock.now += after
        heart.beat(operator, 2)
        assert read_heartbeat(tmp_path).step == step, (operator, after)


def test_many_changes_at_once_start_one_thread(tmp_path, clock, timers):
    heart = Heartbeat(tmp_path, clock)
    for number in range(50):
        heart.beat(f"operator {number}", 1)
    assert timers == ["one"]


def test_the_last_of_several_quick_operators_is_told_in_the_end(tmp_path):
    heart = Heartbeat(tmp_path)
    for operator in ("rollout", "reward", "update_actor"):
        heart.beat(operator, 1)
    assert read_heartbeat(tmp_path).operator == "rollout"
    wait_for(lambda: read_heartbeat(tmp_path).operator == "update_actor")


def test_the_end_is_written_at_once_and_is_the_last_word(tmp_path, clock):
    heart = Heartbeat(tmp_path, clock)
    heart.beat("rollout", 3)
    heart.end("finished")
    clock.now += 10
    heart.beat("rollout", 4)
    spoken = read_heartbeat(tmp_path)
    assert (spoken.outcome, spoken.step) == ("finished", 3)


@pytest.mark.parametrize(("ended", "outcome"), [(None, FAILED), ("stopped", "stopped")])
def test_an_exception_is_a_failure_unless_the_end_was_written(tmp_path, clock, ended, outcome):
    with pytest.raises(ValueError, match="boom"), Heartbeat(tmp_path, clock) as heart:
        heart.beat("reward", 2)
        if ended:
            heart.end(ended)
        raise ValueError("boom")
    assert read_heartbeat(tmp_path).outcome == outcome
    with Heartbeat(tmp_path, clock) as heart:
        heart.beat("reward", 2)
    assert read_heartbeat(tmp_path).outcome is None, "leaving without an end is none"


def test_a_directory_that_cannot_be_written_is_reported_once(tmp_path, clock, caplog):
    heart = Heartbeat(tmp_path / "gone", clock)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now += 5
            heart.beat("rollout", 1)
        heart.end("finished")
    assert len(caplog.records) == 1
    assert "no heartbeat" in caplog.text


def test_a_reader_never_sees_half_of_one(tmp_path, clock, monkeypatch):
    Heartbeat(tmp_path, clock).beat("rollout", 1)

    def full(path, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(regular_file.Path, "replace", full)
    Heartbeat(tmp_path, clock).beat("reward", 2)
    assert read_heartbeat(tmp_path).operator == "rollout"
