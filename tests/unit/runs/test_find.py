"""Directories that are runs, and the one that a word means."""

import os

import pytest

from tests.unit.cli.status_runs import make_run, submit_run
from verl_hpc.errors import ConfigError
from verl_hpc.runs.find import (
    find_run,
    is_run,
    last_activity,
    newest_run,
    restart_budget,
    runs_below,
    total_steps,
)


def test_a_run_is_a_directory_with_a_configuration_and_no_checkpoint(tmp_path):
    run = make_run(tmp_path)
    assert is_run(run) and is_run(submit_run(tmp_path / "submitted", "1"))
    assert not is_run(tmp_path) and not is_run(tmp_path / "gone")
    step = run / "checkpoints/step_00000003"
    step.mkdir(parents=True)
    (step / "config.yaml").write_text("")
    (step / "manifest.json").write_text("{}")
    assert not is_run(step)


def test_runs_are_found_at_several_levels_and_not_inside_runs(tmp_path):
    outer = make_run(tmp_path / "runs", "a")
    make_run(outer, "inner")
    deep = make_run(tmp_path / "runs/b", "c")
    make_run(tmp_path / "runs/d/e/f", "too_deep")
    (tmp_path / "runs/link").symlink_to(deep)
    assert list(runs_below(tmp_path / "runs")) == [outer, deep]
    assert list(runs_below(tmp_path / "gone")) == []


def test_the_doctors_directory_has_logs_and_is_no_run(here):
    job = here / "runs/doctor/job"
    job.mkdir(parents=True)
    (job / "site.yaml").write_text("name: here\n")
    assert list(runs_below(here / "runs")) == []
    assert find_run("doctor").resolve() == job.parent


@pytest.mark.parametrize(
    "word, answer",
    [
        ("ppo_lb", "did you mean ppo_lab?"),
        ("runs/ppo_lb", "did you mean ppo_lab?"),
        ("inner", "did you mean group/inner?"),
        ("zzz", "`python -m verl_hpc list` shows the 2 runs in runs/"),
        ("runs", "is not a run directory: it has no config.yaml"),
    ],
)
def test_a_word_that_means_none(here, word, answer):
    run = make_run(here / "runs", "ppo_lab")
    make_run(here / "runs/group", "inner")
    for name in ("ppo_lab", "runs/ppo_lab", str(run)):
        assert find_run(name).resolve() == run
    with pytest.raises(ConfigError, match=f"^{word}: ") as caught:
        find_run(word)
    assert answer in str(caught.value)


def test_where_there_are_no_runs(here):
    with pytest.raises(ConfigError, match="runs/ has none; give the path"):
        find_run("x")
    assert newest_run() is None


def test_the_newest_is_the_one_last_at_work(here):
    old, new = (make_run(here / "runs", name) for name in "ab")
    os.utime(old / "config.yaml", (100, 100))
    os.utime(new / "config.yaml", (200, 200))
    assert newest_run().name == "b"
    (old / "metrics.jsonl").write_text("")
    os.utime(old / "metrics.jsonl", (300, 300))
    assert newest_run().name == "a"
    assert last_activity(old) == 300


def test_steps_come_from_the_resolved_configuration(tmp_path):
    assert total_steps(make_run(tmp_path, steps=123)) == 123
    assert total_steps(submit_run(tmp_path / "submitted", "1")) == 3
    assert total_steps(tmp_path) is None
    (tmp_path / "config.yaml").write_bytes(b"\xff\xfe")
    assert total_steps(tmp_path) is None


@pytest.mark.parametrize(("by", "budget"), [("requeue", 5), ("chain", None)])
def test_the_budget_of_restarts_which_a_chain_does_without(tmp_path, by, budget):
    assert restart_budget(submit_run(tmp_path, "1", by=by, most=5)) == budget
    assert restart_budget(tmp_path) is None
