"""The verb attach: instructions, and where it refuses."""

import json
import threading
import time

import pytest

from tests.unit.cli.status_runs import beat, make_run
from verl_hpc.cli import attach as verb
from verl_hpc.runs.attach import Listening, answer, take_requests
from verl_hpc.runs.ranks import Progress, Ranks, write_ranks


@pytest.fixture
def run(here, monkeypatch):
    """A run of two ranks, which look at once."""
    monkeypatch.setattr(verb, "_PATIENCE_S", 1.0)
    run = make_run(here / "runs", "ppo")
    both = tuple(Progress(rank, 1, "reward", 1.0, "n7", 100 + rank) for rank in (0, 1))
    write_ranks(run, Ranks(time.time(), 0.1, 120.0, None, both))
    return run


@pytest.fixture
def rank(run):
    """Answers the next request, with fields that the test may change."""
    fields = {"rank": 1, "host": "n7", "pid": 101, "port": 43211, "code": "/runs/ppo/job/code"}

    def work():
        end = time.monotonic() + 10
        while not (requests := take_requests(run)):
            if time.monotonic() > end:
                return
            time.sleep(0.01)
        answer(run, Listening(next(iter(requests.values())), **fields))

    thread = threading.Thread(target=work)
    thread.start()
    yield fields
    thread.join()


def test_instructions(rank, prints):
    shown = prints("attach", "ppo", "--rank", "1")
    assert shown.startswith("rank 1 on n7 (process 101) listens at 127.0.0.1:43211, to your user")
    assert "  ssh -L 5678:127.0.0.1:43211 n7\n" in shown
    launch = json.loads(shown[shown.index("  {\n") : shown.rindex("}\n") + 1])
    assert launch["connect"] == {"host": "127.0.0.1", "port": 5678}
    assert launch["pathMappings"][0]["remoteRoot"] == "/runs/ppo/job/code"


def test_on_the_ranks_own_machine_there_is_no_tunnel(rank, monkeypatch, prints):
    monkeypatch.setattr(verb.socket, "gethostname", lambda: "n7")
    shown = prints("attach", "ppo", "--rank", "1")
    assert "ssh" not in shown and '"port": 43211' in shown


def test_a_rank_without_debugpy(rank, refuses):
    rank["error"] = "ModuleNotFoundError: No module named 'debugpy'"
    told = refuses("attach", "ppo", "--rank", "1")
    assert "No module named 'debugpy'; pip install debugpy" in told


def test_a_rank_that_does_not_answer(run, refuses):
    errors = refuses("attach", "ppo", "--rank", "1")
    assert "rank 1 has not answered within 1 s" in errors and "verl_hpc hang runs/ppo" in errors
    assert not (run / "attach-1.json").exists(), "the next start must not meet it"


def test_a_rank_or_a_run_that_is_not(run, refuses):
    for number in (-1, 2):
        told = refuses("attach", "ppo", f"--rank={number}")
        assert f"--rank {number}: runs/ppo has the ranks 0 to 1" in told
    beat(run, "end", 3, outcome="stopped")
    told = refuses("attach", "ppo", "--rank", "0")
    assert "is not under way (stopped): no rank to attach to" in told
