"""Prompts that training and evaluation have in common."""

import json

import pytest

from tests.unit.config.test_run import parse
from tests.unit.data.conftest import files, verl_row, write_jsonl
from verl_hpc.config.load import dump_config
from verl_hpc.data.overlap import count_overlap, main, prompt_key
from verl_hpc.data.sources import open_source


def source(path, *prompts):
    return open_source(files(write_jsonl(path, [{"prompt": prompt} for prompt in prompts])))


def test_prompts_are_counted_and_rows_of_training_are_named(tmp_path):
    first = source(tmp_path / "a.jsonl", "1?", "2?", "1?", "9?")
    second = source(tmp_path / "b.jsonl", "8?", "3?")
    evaluation = source(tmp_path / "c.jsonl", "1?", "1?", "3?", "5?")
    counts = count_overlap([first, second], evaluation)
    assert (counts.evaluation_rows, counts.evaluation_prompts) == (4, 3)
    assert (counts.training_rows, counts.shared_prompts, counts.shared_evaluation_rows) == (6, 2, 3)
    assert [list(rows) for rows in counts.shared_training_rows] == [[0, 2], [1]]


def chat(*messages):
    return [{"role": role, "content": content} for role, content in messages]


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ("1 + 1?", chat(("user", "1 + 1?")), True),
        ("1 +\n 1? ", "1 + 1?", True),
        ("1 + 1?", "1 + 1 ?", False),
        (chat(("system", "Add."), ("user", "1?")), chat(("user", "1?")), False),
        (chat(("user", "a"), ("user", "b")), chat(("user", "a user b")), False),
        (chat(("user", "1?")), chat(("system", "1?")), False),
        ("\ud800", "\ud800", True),
    ],
)
def test_prompts_are_the_same_if_a_model_reads_the_same(one, other, same):
    assert (prompt_key(one) == prompt_key(other)) is same


def run_directory(path, train, evaluation, accuracies):
    path.mkdir()
    config = parse(data__train=train, data__evaluation=evaluation)
    (path / "config.yaml").write_text(dump_config(config))
    rows = [{"step": step, "val/accuracy": value} for step, value in accuracies]
    lines = [json.dumps(row) for row in [*rows, {"step": 99}]]
    (path / "metrics.jsonl").write_text("\n".join([*lines, '{"step": 100, "val/acc']))
    return path


def test_runs_that_follow_each_other_are_counted_together(tmp_path, capsys):
    def data(name, *indices):
        rows = [verl_row(index) for index in indices]
        return files(write_jsonl(tmp_path / f"{name}.jsonl", rows)).model_dump()

    held_out = data("test", 1, 2, 2)
    warm_up = run_directory(tmp_path / "sft", data("a", 1, 7), held_out, [(5, 0.25), (10, 0.5)])
    then = run_directory(tmp_path / "rl", data("b", 8, 9), held_out, [])
    assert main([str(warm_up), str(then)]) == 0
    found = "evaluation has 3 rows with 2 different prompts; 1 of these occur in the 4 rows"
    assert capsys.readouterr().out.splitlines() == [
        f"{warm_up}: {found} of training of {warm_up}, {then}",
        "  val/accuracy 0.2500 at step 5, 0.5000 at step 10",
        f"{then}: {found} of training of {warm_up}, {then}",
    ]
    assert main([str(then)]) == 0
    assert "; 0 of these occur in the 2 rows" in capsys.readouterr().out
    assert main([str(tmp_path / "gone")]) == 1
    assert capsys.readouterr().err.startswith("ConfigError: ")
