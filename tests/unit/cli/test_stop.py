"""`stop`: the request that it leaves for the run, and the answer to the user."""

import time

import pytest

from tests.unit.cli.status_runs import beat, fake_slurm, submit_run
from verl_hpc.config.requests import Request, leave_request, read_requests

pytestmark = pytest.mark.usefixtures("here")


def asked(run):
    (request,) = read_requests(run)
    return request.kind, request.now, request.after_step


def test_after_the_step_under_way(run, prints):
    assert prints("stop", "ppo_lab") == (
        "runs/ppo_lab: it finishes the step under way, which takes 10.0s, saves and leaves for "
        "good.\n"
    )
    assert asked(run) == ("stop", False, 0)
    words = "drops the step under way if that has changed no weights yet"
    assert words in prints("stop", run, "--now")
    assert asked(run) == ("stop", True, 0)


AFTER = [
    (20, "when step 20 is done, in about 3m 00s, it saves and leaves for good"),
    (3, "ppo_lab: it finishes the step under way, which takes 10.0s"),
    (2, "step 2 is done already; it finishes the step under way"),
]


@pytest.mark.parametrize("after, words", AFTER)
def test_after_a_step(run, prints, after, words):
    assert words in prints("stop", "ppo_lab", "--after-step", after)
    assert asked(run) == ("stop", False, after)


def test_before_the_first_step_nothing_is_promised_about_time(run, prints):
    (run / "metrics.jsonl").unlink()
    assert ": it finishes the step under way, saves and leaves" in prints("stop", "ppo_lab")


NO_STEPS = [
    ("40", "--after-step 40: the run has 40 steps and ends by itself"),
    ("0", "--after-step 0: a number of steps from 1 up"),
    ("-3", "--after-step -3"),
]


@pytest.mark.parametrize("after, words", NO_STEPS)
def test_a_step_that_cannot_be(run, after, words, refuses):
    assert words in refuses("stop", "ppo_lab", f"--after-step={after}")
    assert not read_requests(run)


def test_a_later_request_replaces_an_earlier_one(run, prints):
    leave_request(run, Request(kind="stop", after_step=9, by="ann"))
    told = prints("stop", "ppo_lab", "--now")
    assert told.startswith("replaces: stop after step 9, asked by ann\n")
    assert asked(run) == ("stop", True, 0)


def test_a_request_is_withdrawn(run, prints):
    leave_request(run, Request(kind="stop", now=True, by="ann"))
    told = prints("stop", "ppo_lab", "--cancel")
    assert told == "runs/ppo_lab: withdrawn: stop now, asked by ann\n"
    assert not read_requests(run)
    assert prints("stop", "ppo_lab", "--cancel") == "runs/ppo_lab: no request waits\n"


@pytest.mark.parametrize("outcome", ["finished", "goal reached", "stopped", "failed", "restart"])
def test_of_a_run_that_is_over_nothing_is_asked(run, outcome, refuses):
    beat(run, outcome=outcome)
    assert "ClusterError: runs/ppo_lab is not under way (" in refuses("stop", "ppo_lab")
    assert not read_requests(run)


def test_a_run_in_the_queue_is_taken_out_of_it(here, monkeypatch, refuses):
    run = submit_run(here, "4711")
    fake_slurm(here, monkeypatch, squeue='echo "4711|PENDING|Priority|N/A"')
    assert "`scancel 4711` takes it out of the queue" in refuses("stop", "run")
    assert not read_requests(run)


def test_a_run_that_is_silent_may_be_gone(run, prints):
    beat(run, at=time.time() - 9000)
    told = prints("stop", "ppo_lab")
    assert "It may be gone, though (no heartbeat for 2h 30m: in rollout)" in told
    assert "stop runs/ppo_lab --cancel` withdraws it" in told
    assert asked(run) == ("stop", False, 0)


def test_a_run_directory_that_cannot_be_written(run, refuses):
    (run / "request_stop.json").mkdir()
    assert "cannot leave a request in runs/ppo_lab" in refuses("stop", "ppo_lab")
