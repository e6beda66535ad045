"""Prompts of evaluation that occur in the training of runs that follow each other."""

from tests.unit.config.test_run import parse
from tests.unit.data.conftest import files, verl_row, write_jsonl
from verl_hpc.cli.main import main
from verl_hpc.config.load import dump_config


def run_directory(path, train, evaluation, **settings):
    path.mkdir()
    config = parse(data__train=train, data__evaluation=evaluation, **settings)
    (path / "config.yaml").write_text(dump_config(config))
    return str(path)


def test_runs_that_follow_each_other_are_counted_together(tmp_path, capsys, prints):
    def data(name, *indices):
        rows = [verl_row(index) for index in indices]
        return files(write_jsonl(tmp_path / f"{name}.jsonl", rows)).model_dump()

    held_out = data("test", 1, 2, 2)
    warm_up = run_directory(tmp_path / "sft", data("a", 1, 7), held_out)
    then = run_directory(tmp_path / "rl", data("b", 8, 9), held_out)
    assert main(["overlap", warm_up, then]) == 0
    found = "evaluation has 3 rows with 2 different prompts; 1 of these occur in the 4 rows"
    assert capsys.readouterr().out.splitlines() == [
        f"{run}: {found} of training of {warm_up}, {then}" for run in (warm_up, then)
    ]
    assert "; 0 of these occur in the 2 rows" in prints("overlap", then)


def test_every_set_of_a_run_has_its_line(tmp_path, prints):
    def data(name, *indices):
        rows = [verl_row(index) for index in indices]
        return files(write_jsonl(tmp_path / f"{name}.jsonl", rows)).model_dump()

    sets = {"clean": {"source": data("x", 7)}, "dirty": {"source": data("y", 1, 2)}}
    run = run_directory(tmp_path / "run", data("a", 1, 9), None, evaluation__sets=sets)
    assert prints("overlap", run).splitlines() == [
        f"{run}: {name} has {rows} rows with {rows} different prompts; {shared} of these occur in "
        f"the 2 rows of training of {run}"
        for name, rows, shared in (("clean", 1, 0), ("dirty", 2, 1))
    ]


def test_rows_that_the_run_left_out_do_not_count(tmp_path, prints):
    def data(name, *indices):
        rows = [verl_row(index) for index in indices]
        return files(write_jsonl(tmp_path / f"{name}.jsonl", rows)).model_dump()

    both = data("train", 1, 2, 3), data("test", 2)
    dropped = run_directory(tmp_path / "drop", *both, data__overlap="drop")
    kept = run_directory(tmp_path / "warn", *both, data__overlap="warn")
    assert "; 0 of these occur in the 2 rows" in prints("overlap", dropped)
    assert "; 1 of these occur in the 3 rows" in prints("overlap", kept)


def test_a_run_without_evaluation_is_named(tmp_path, refuses):
    train = files(write_jsonl(tmp_path / "a.jsonl", [verl_row(1)])).model_dump()
    alone = run_directory(tmp_path / "alone", train, None)
    assert f"{alone}: the run has no data.evaluation" in refuses("overlap", alone)
