"""Guards: what is a fall, and what a run does after one."""

import json
from math import inf

import pytest

from tests.unit.config.trees import GAE
from tests.unit.trainer.runs import recipe_of, small_run
from tests.unit.trainer.test_loop import named, saved
from verl_hpc.config.tasks import GuardConfig
from verl_hpc.errors import CheckpointError, ConfigError
from verl_hpc.trainer.guards import Watch, read_violations, resume
from verl_hpc.trainer.train import take_steps

NAN = None


@pytest.mark.parametrize(
    ("limits", "values", "falls"),
    [
        ({"below": 0.5}, [0.6, 0.5, 0.4, 0.3, 0.7, 0.2], [3, 6]),
        ({"above": 1.0}, [0, 1, 2], [3]),
        ({"above": 1.0, "over": 2}, [0, 0, 3, 0, 0], [3]),
        ({"drop": 0.5}, [0.1, 1.0, 0.6, 0.4], [4]),
        ({"drop": 0.5, "over": 2}, [1, 1, 1, 0.2, 0.2], [5]),
        ({"below": -9.0}, [0, NAN, 0], [2]),
        ({"drop": 1.0}, [NAN, 0], [1]),
        ({"below": 0.0}, [1, inf, 1], [2]),
        ({"above": 0.0, "over": 2}, [-1, -inf, -1], [2]),
        ({"below": 1.0, "over": 3}, [0, 0], []),
    ],
)
def test_a_fall_is_told_once(limits, values, falls):
    watch, found = Watch("name", GuardConfig(metric="m", **limits)), []
    for step, value in enumerate(values, 1):
        fall = watch.see(step, value)
        if fall is not None:
            found.append(fall.step)
            watch.is_handled = True
    assert found == falls


REWARD = """
import os

def score(response, ground_truth):
    path = os.path.join(os.path.dirname(__file__), "calls")
    with open(path, "a") as file:
        file.write("x")
    bad = {bad}
    return float(os.path.getsize(path) not in bad)
"""
"""A function whose n-th call, of all lives of the run, is bad for some n; 4 are a step's."""


def guarded(directory, action, bad, metric="critic/score/mean", **changes):
    (directory / "bad.py").write_text(REWARD.format(bad=bad))
    (directory / "calls").unlink(missing_ok=True)
    guard = {"metric": metric, "below": 0.5, "action": action}
    given = {
        "steps": 6,
        "checkpoint": {"every": 1, "keep": 3},
        "reward__function": f"{directory}/bad.py:score",
        "held_out": None,
        "guards": {"scores": guard | changes.pop("guard", {})},
    }
    return small_run(directory, **given | changes)


def train(run, progress=None):
    run.session.watchdog.errands = []
    return take_steps(run, recipe_of(run), None, None, progress)


def falls(run):
    text = (run.config.run_directory / "guards.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


STEP_4 = range(13, 17)


def test_an_alert_is_written_and_the_run_goes_on(tmp_path, caplog):
    run = guarded(tmp_path, "alert", STEP_4)
    result = train(run)
    (line,) = falls(run)
    assert (result.outcome, line["step"], line["guard"], line["value"]) == (
        "finished",
        4,
        "scores",
        0,
    )
    assert "guards.scores: critic/score/mean is 0 at step 4, past 0.5" in caplog.text


def test_a_line_is_whole_behind_one_that_a_kill_cut_short(tmp_path):
    run = guarded(tmp_path, "alert", STEP_4)
    (run.config.run_directory / "guards.jsonl").write_text('{"guard": "sco')
    train(run)
    (line,) = read_violations(run.config.run_directory)
    assert line["step"] == 4


def test_a_file_that_cannot_be_written_is_an_error_of_the_run(tmp_path):
    run = guarded(tmp_path, "alert", STEP_4)
    (run.config.run_directory / "guards.jsonl").mkdir()
    with pytest.raises(CheckpointError, match=r"run\.directory: cannot use .*guards\.jsonl"):
        train(run)


def test_a_stop_saves_and_ends_the_run_which_may_go_on(tmp_path):
    run = guarded(tmp_path, "stop", range(13, 21))
    result = train(run)
    assert (result.outcome, result.progress.step) == ("stopped", 4)
    assert "guards.scores" in result.reason and saved(run)[-1:] == named(4)
    result = train(run, resume(run))
    assert (result.outcome, result.progress.step, len(falls(run))) == ("finished", 6, 1)


SCORED = {"metric": "val/score/mean", "held_out": ["bb"], "evaluation": {"every": 2}}
"""An evaluation after two steps is one call, first the ninth; one at the start is the first."""


def test_the_first_weights_evaluation_is_the_best_to_begin_with(tmp_path):
    given = SCORED | {"evaluation": {"every": 2, "at_start": True}}
    run = guarded(tmp_path, "alert", [10], **given, guard={"below": None, "drop": 0.5})
    assert (train(run).outcome, [line["step"] for line in falls(run)]) == ("finished", [2])


def test_a_fall_of_the_first_weights(tmp_path):
    given = SCORED | {"evaluation": {"every": 2, "at_start": True}}
    run = guarded(tmp_path, "stop", [1], **given)
    result = train(run)
    assert (result.outcome, result.progress.step, saved(run)) == ("stopped", 0, named(0))
    assert (train(run, resume(run)).outcome, len(falls(run))) == ("finished", 1)


def test_a_metric_that_no_task_writes_is_an_error_behind_the_critics_first_steps(tmp_path):
    changes = GAE | {"critic__warmup_steps": 1, "tasks": {"one": {}, "two": {}}}
    run = guarded(tmp_path, "alert", (), metric="critic/scores/mean", **changes)
    with pytest.raises(ConfigError, match=r"critic/scores/mean: no step writes it; did you mean"):
        train(run)


def test_a_metric_that_no_step_writes_is_an_error_with_its_neighbours(tmp_path):
    run = guarded(tmp_path, "alert", (), metric="critic/scores/mean")
    with pytest.raises(ConfigError, match=r"critic/scores/mean: no step writes it; did you mean"):
        train(run)
