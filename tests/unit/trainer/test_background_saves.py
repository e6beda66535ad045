"""Saves that are written while the loop computes."""

import time

import pytest

from tests.unit.trainer.runs import loop, small_run
from tests.unit.trainer.test_loop import equal, named, saved, told_run
from verl_hpc.checkpoint.host_copy import HostCopy
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.checkpoint.tensor_file import TensorFile
from verl_hpc.checkpoint.write import StepWriter
from verl_hpc.errors import CheckpointError, RewardError, agreed
from verl_hpc.runtime.stop import StopRequest
from verl_hpc.testing.local_run import engine_of


@pytest.fixture
def slow(monkeypatch):
    """Copies and writes take a good part of a step."""
    take, write = HostCopy.take, TensorFile.write

    def slowly(work):
        return lambda *arguments: time.sleep(0.05) or work(*arguments)

    monkeypatch.setattr(HostCopy, "take", slowly(take))
    monkeypatch.setattr(TensorFile, "write", slowly(write))


def fails(monkeypatch, *numbers):
    """Writes of these saves fail."""
    real, count = TensorFile.write, []

    def write(self, path, parts):
        count.append(path)
        if len(count) in numbers:
            raise OSError(28, "No space left on device")
        real(self, path, parts)

    monkeypatch.setattr(TensorFile, "write", write)


def tensors(run, step):
    """Weights and optimizer state of a saved step."""
    opened = Step(run.config.run_directory / "checkpoints" / step_name(step))
    reader = opened.reader()
    return {
        f"{name}/{part.tensor}": reader.read(str(part.holders[0]), part.view.name, part.box)
        for name in opened.components
        for part in opened.component(name).regions
    }


@pytest.mark.parametrize("recipe", ["rl", "sft"])
def test_every_step_of_a_slow_disk_is_what_a_run_that_waits_saves(tmp_path, slow, recipe):
    runs = []
    for background in (False, True):
        checkpoint = {"every": 1, "keep": 9, "background": background}
        runs.append(
            small_run(tmp_path, name=str(background), steps=3, checkpoint=checkpoint, recipe=recipe)
        )
        loop(runs[-1])
    for step in (1, 2, 3):
        assert equal(*(tensors(run, step) for run in runs)), step


def test_no_model_computes_before_its_copy_is_made(tmp_path, slow, monkeypatch):
    """Not even without a gradient: a reference's pass puts other weights into the actor's engine,
    and takes them away again."""
    passes = {"old_log_probs": "recompute"}
    run = small_run(tmp_path, steps=3, checkpoint={"every": 1, "keep": 9}, algorithm=passes)
    under_way, waited = [], []
    begin, engine = StepWriter.begin, engine_of(run, "actor")
    infer = engine.infer

    def watched(self, *arguments):
        under_way.append(self)
        return begin(self, *arguments)

    def spy(*arguments, **named):
        if under_way:
            waited.append(under_way[-1]._now is None or under_way[-1]._now.is_copied.is_set())
        return infer(*arguments, **named)

    monkeypatch.setattr(StepWriter, "begin", watched)
    monkeypatch.setattr(engine, "infer", spy)
    loop(run)
    assert waited and all(waited)


def test_a_save_that_fails_stops_the_run(tmp_path, monkeypatch):
    fails(monkeypatch, 2)
    run = small_run(tmp_path, steps=4, checkpoint={"every": 1, "keep": 9})
    with pytest.raises(CheckpointError, match="could not write step_00000002 .*No space"):
        loop(run)
    assert saved(run) == named(1)


def test_a_run_goes_on_without_a_save_that_fails(tmp_path, monkeypatch, caplog):
    fails(monkeypatch, 2, 4)
    checkpoint = {"every": 1, "keep": 9, "on_write_failure": "continue"}
    run = small_run(tmp_path, steps=4, checkpoint=checkpoint)
    result, _ = loop(run)
    assert (result.outcome, saved(run)) == ("finished", named(1, 3))
    told = [r.message for r in caplog.records if "continuing without" in r.message]
    assert [text.split(": ")[0] for text in told] == [
        "continuing without a checkpoint of step 2",
        "continuing without a checkpoint of step 4",
    ]


def test_who_leaves_finishes_the_save_under_way_and_tries_a_failed_one_again(
    tmp_path, monkeypatch, slow
):
    fails(monkeypatch, 1)
    checkpoint = {"every": 1, "on_write_failure": "continue"}
    run = told_run(tmp_path, StopRequest.RESTART_NOW, "assign", checkpoint=checkpoint)
    result, _ = loop(run)
    assert ((result.outcome, result.progress.step), saved(run)) == (("restart", 1), named(1))


def test_an_error_of_all_ranks_leaves_the_save_before_it_whole(tmp_path, slow):
    run = small_run(tmp_path, steps=4, checkpoint={"every": 1, "keep": 9})
    enter, count = run.session.watchdog.enter, []

    def fail(name):
        enter(name)
        count.append(name)
        if count.count("reward") == 3:
            raise agreed(RewardError("no"))

    run.session.watchdog.enter = fail
    with pytest.raises(RewardError, match="no"):
        loop(run)
    assert saved(run) == named(1, 2)


def test_metrics_say_what_a_save_took(tmp_path, slow):
    _, lines = loop(small_run(tmp_path, steps=4, checkpoint={"every": 2, "keep": 9}))
    assert "perf/save_seconds" not in lines[0]
    assert lines[-1]["perf/save_seconds"] > 0.09
