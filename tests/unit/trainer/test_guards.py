"""Guards: what is a fall, and what a run does after one."""

import json
from math import inf

import pytest

from tests.unit.config.trees import GAE
from tests.unit.trainer.runs import PROMPTS, lines, recipe_of, small_run
from tests.unit.trainer.test_loop import named, saved
from verl_hpc.config.tasks import GuardConfig
from verl_hpc.errors import CheckpointError, ConfigError, TrainingError
from verl_hpc.runs.lives import LifeRecord
from verl_hpc.runtime.stop import Signals, StopRequest
from verl_hpc.trainer.guards import Guards, Violation, Watch, go_back, read_violations, resume
from verl_hpc.trainer.train import take_steps

NAN = None


@pytest.mark.parametrize(
    ("limits", "values", "falls"),
    [
        ({"below": 0.5}, [0.6, 0.5, 0.4, 0.3, 0.7, 0.2], {3: 2, 6: 5}),
        ({"above": 1.0}, [0, 1, 2], {3: 2}),
        ({"above": 1.0, "over": 2}, [0, 0, 3, 0, 0], {3: 1}),
        ({"drop": 0.5}, [0.1, 1.0, 0.6, 0.4], {4: 3}),
        ({"drop": 0.5, "over": 2}, [1, 1, 1, 0.2, 0.2], {5: 3}),
        ({"below": -9.0}, [0, NAN, 0], {2: 1}),
        ({"drop": 1.0}, [NAN, 0], {1: 0}),
        ({"below": 0.0}, [1, inf, 1], {2: 1}),
        ({"above": 0.0, "over": 2}, [-1, -inf, -1], {2: 0}),
        ({"below": 1.0, "over": 3}, [0, 0], {}),
    ],
)
def test_a_fall_is_told_once_with_the_last_good_step(limits, values, falls):
    watch, found = Watch("name", GuardConfig(metric="m", **limits)), {}
    for step, value in enumerate(values, 1):
        fall = watch.see(step, value)
        if fall is not None:
            found[step], watch.is_handled = fall.good_until, True
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


def train(run, progress=None, life=None):
    run.session.watchdog.errands = []
    return take_steps(run, recipe_of(run), None, life, progress)


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


def test_a_rollback_goes_back_and_skips_rows(tmp_path):
    run = guarded(tmp_path, "rollback", STEP_4, checkpoint={"every": 2, "keep": 3})
    seconds, life = [], LifeRecord(run.config.run_directory, 1, False)
    life.go_back = lambda lost: seconds.append((lost, lines(run)[2:]))
    result = train(run, life=life)
    (line,) = falls(run)
    assert (line["step"], line["good_until"], line["to"]) == (4, 3, 2)
    ((lost, taken_back),) = seconds
    assert [row["step"] for row in taken_back] == [3, 4]
    assert lost == sum(row["timing_s/step"] for row in taken_back) > 0
    assert result.outcome == "finished" and saved(run) == named(2, 4, 6)
    assert [row["step"] for row in lines(run)] == [1, 2, 3, 4, 5, 6]
    # Six steps and two again, of two rows each.
    skipped = divmod(2 * 8, len(PROMPTS))
    assert (result.progress.position.epoch, result.progress.position.offset) == skipped


def test_a_fall_before_the_first_save_goes_back_to_the_start(tmp_path):
    run = guarded(tmp_path, "rollback", range(1, 5), checkpoint={"every": 3, "keep": 3})
    result = train(run)
    assert (falls(run)[0]["to"], result.outcome, saved(run)) == (0, "finished", named(0, 3, 6))


def test_a_run_that_is_killed_behind_a_rollback_skips_the_same_rows(tmp_path):
    """Nothing was saved since."""
    run = guarded(tmp_path, "rollback", STEP_4, steps=4, checkpoint={"every": 2, "keep": 9})
    train(run)
    (line,) = falls(run)
    here = run.config.run_directory / "checkpoints"
    (here / named(4)[0] / "manifest.json").unlink()
    progress = resume(run)
    assert progress is not None
    assert (progress.step, progress.position.offset) == (2, line["position"]["offset"])


def test_a_run_that_falls_again_and_again_ends(tmp_path):
    run = guarded(tmp_path, "rollback", range(13, 999), guard={"max_rollbacks": 2})
    with pytest.raises(TrainingError, match=r"guards\.scores.*after 2 rollbacks"):
        train(run)
    assert len(falls(run)) == 2 and saved(run)[-1:] == named(3)


SCORED = {"metric": "val/score/mean", "held_out": ["bb"], "evaluation": {"every": 2}}
"""An evaluation after two steps is one call, first the ninth; one at the start is the first."""


def test_a_run_whose_evaluations_fall_again_ends_with_its_last_good_step(tmp_path):
    saves = {"checkpoint": {"every": 2, "keep": 3}, "guard": {"max_rollbacks": 1}}
    run = guarded(tmp_path, "rollback", [18, 27, 36], **SCORED | saves)
    for progress in (lambda: None, lambda: resume(run)):
        with pytest.raises(TrainingError, match=r"after 1 rollbacks.*ends with step 2"):
            train(run, progress())
        assert (saved(run), len(falls(run))) == (named(0, 2), 1)
    assert train(run, resume(run)).outcome == "finished"


def test_the_first_weights_evaluation_is_the_best_to_begin_with(tmp_path):
    given = SCORED | {"evaluation": {"every": 2, "at_start": True}}
    run = guarded(tmp_path, "alert", [10], **given, guard={"below": None, "drop": 0.5})
    assert (train(run).outcome, [line["step"] for line in falls(run)]) == ("finished", [2])


@pytest.mark.parametrize("action", ["stop", "rollback"])
def test_a_fall_of_the_first_weights(tmp_path, action):
    given = SCORED | {"evaluation": {"every": 2, "at_start": True}}
    run = guarded(tmp_path, action, [1], **given)
    if action == "rollback":
        with pytest.raises(TrainingError, match="with its first weights"):
            train(run)
        return
    result = train(run)
    assert (result.outcome, result.progress.step, saved(run)) == ("stopped", 0, named(0))
    assert (train(run, resume(run)).outcome, len(falls(run))) == ("finished", 1)


@pytest.mark.parametrize(("is_rollback", "action"), [(True, "rollback"), (False, "")])
def test_a_fall_that_was_not_acted_on_is_told_after_a_restart(tmp_path, is_rollback, action):
    """A line of an earlier rollback says nothing about it."""
    run, metric = guarded(tmp_path, "rollback", ()), "critic/score/mean"
    rows = [{"step": step, metric: float(step < 4)} for step in range(1, 5)]
    line = {"guard": "scores", "step": 4} | ({"to": 2} if is_rollback else {})
    for name, written in (("metrics", rows), ("guards", [line])):
        text = "".join(json.dumps(row) + "\n" for row in written)
        (run.config.run_directory / f"{name}.jsonl").write_text(text)
    guards = Guards(run, 4)
    assert guards.look(4, {}) == action
    assert guards.look(5, {metric: 0.0}) == ""


def test_a_run_that_restarts_at_its_fall_goes_back_then(tmp_path):
    changes = SCORED | {"steps": 5, "checkpoint": {"every": 2, "keep": 3}}
    signals, entered = Signals(), []
    run = guarded(tmp_path, "rollback", [18], **changes, signals=signals)

    def enter(name):
        entered.append(name)
        if entered.count("reward") == 4:
            signals.stop_request, signals.reason = StopRequest.RESTART, "signal SIGTERM"

    run.session.watchdog.enter = enter
    result = train(run)
    assert (result.outcome, result.progress.step) == ("restart", 4)
    run = guarded(tmp_path, "rollback", [18], **changes)  # which are not as many calls again
    assert train(run, resume(run)).outcome == "finished"
    assert [line["to"] for line in falls(run)] == [2]


def test_a_checkpoint_that_retention_has_removed_is_asked_for(tmp_path):
    run = guarded(tmp_path, "rollback", ())
    result = train(run)
    fall = Violation("scores", "critic/score/mean", 6, 0.0, 0.5, "rollback", good_until=2)
    with pytest.raises(TrainingError, match=r"until step 2, and checkpoint.keep = 3 has left 4, 5"):
        go_back(run, fall, result.progress)
    assert saved(run) == named(4, 5, 6)


def test_a_metric_that_no_task_writes_is_an_error_behind_the_critics_first_steps(tmp_path):
    changes = GAE | {"critic__warmup_steps": 1, "tasks": {"one": {}, "two": {}}}
    run = guarded(tmp_path, "alert", (), metric="critic/scores/mean", **changes)
    with pytest.raises(ConfigError, match=r"critic/scores/mean: no step writes it; did you mean"):
        train(run)


def test_a_metric_that_no_step_writes_is_an_error_with_its_neighbours(tmp_path):
    run = guarded(tmp_path, "alert", (), metric="critic/scores/mean")
    with pytest.raises(ConfigError, match=r"critic/scores/mean: no step writes it; did you mean"):
        train(run)
