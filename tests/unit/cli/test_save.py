"""`save`: asks for a checkpoint of a run that continues."""

from tests.unit.cli.status_runs import beat
from verl_hpc.config.requests import Request, leave_request, read_requests


def test_a_save_after_the_step_under_way(run, prints):
    assert prints("save", "ppo_lab") == (
        "runs/ppo_lab: it finishes the step under way, which takes 10.0s, saves and continues.\n"
    )
    assert read_requests(run)[0].kind == "save"


def test_a_save_leaves_a_stop_that_waits(run, prints):
    leave_request(run, Request(kind="stop", after_step=9, by="ann"))
    assert prints("save", "ppo_lab").startswith("waits as well: stop after step 9, asked by ann\n")
    assert [request.kind for request in read_requests(run)] == ["stop", "save"]


def test_a_run_that_is_over_cannot_save(run, refuses):
    beat(run, outcome="finished")
    assert "is not under way (finished): there is nothing to save" in refuses("save", "ppo_lab")
