"""Prompts of evaluation that occur in the training of runs that follow each other."""

import pytest

from tests.unit.config.test_run import parse
from tests.unit.data.conftest import files, verl_row, write_jsonl
from verl_hpc.config.load import dump_config


def data(tmp_path, name, *indices):
    """Settings of a data set of rows by their numbers."""
    rows = [verl_row(index) for index in indices]
    return files(write_jsonl(tmp_path / f"{name}.jsonl", rows)).model_dump()


def run_directory(path, train, evaluation, **settings):
    path.mkdir()
    config = parse(data__train=train, data__evaluation=evaluation, **settings)
    (path / "config.yaml").write_text(dump_config(config))
    return str(path)


def test_runs_that_follow_each_other_are_counted_together(tmp_path, prints):
    held_out = data(tmp_path, "test", 1, 2, 2)
    warm_up = run_directory(tmp_path / "sft", data(tmp_path, "a", 1, 7), held_out)
    then = run_directory(tmp_path / "rl", data(tmp_path, "b", 8, 9), held_out)
    counts = "evaluation has 3 rows with 2 different prompts; 1 of these occur in the 4 rows"
    expected = [f"{run}: {counts} of training of {warm_up}, {then}" for run in (warm_up, then)]
    assert prints("overlap", warm_up, then).splitlines() == expected
    assert "; 0 of these occur in the 2 rows" in prints("overlap", then)


def test_every_set_of_a_run_has_its_line(tmp_path, prints):
    clean, dirty = data(tmp_path, "x", 7), data(tmp_path, "y", 1, 2)
    sets = {"clean": {"source": clean}, "dirty": {"source": dirty}}
    train = data(tmp_path, "a", 1, 9)
    run = run_directory(tmp_path / "run", train, None, evaluation__sets=sets)
    assert prints("overlap", run).splitlines() == [
        f"{run}: {name} has {rows} rows with {rows} different prompts; {shared} of these occur in "
        f"the 2 rows of training of {run}"
        for name, rows, shared in (("clean", 1, 0), ("dirty", 2, 1))
    ]


@pytest.mark.parametrize(("overlap", "shared", "rows"), [("drop", 0, 2), ("warn", 1, 3)])
def test_rows_that_the_run_left_out_do_not_count(tmp_path, prints, overlap, shared, rows):
    both = data(tmp_path, "train", 1, 2, 3), data(tmp_path, "test", 2)
    run = run_directory(tmp_path / "run", *both, data__overlap=overlap)
    assert f"; {shared} of these occur in the {rows} rows" in prints("overlap", run)


def test_all_tasks_of_a_run_train(tmp_path, prints):
    tasks = {"a": {}, "b": {"recipe": "sft", "train": data(tmp_path, "b", 2, 8)}}
    both = data(tmp_path, "a", 1), data(tmp_path, "test", 1, 2)
    run = run_directory(tmp_path / "run", *both, tasks=tasks)
    assert "; 2 of these occur in the 3 rows" in prints("overlap", run)


def test_a_run_without_evaluation_is_named(tmp_path, refuses):
    alone = run_directory(tmp_path / "alone", data(tmp_path, "a", 1), None)
    assert f"{alone}: the run has no data.evaluation" in refuses("overlap", alone)
