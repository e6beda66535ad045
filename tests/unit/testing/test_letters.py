"""The quickstart's data."""

import json

import pytest

from verl_hpc.testing.letters import ROWS, main


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Directories of seeds 0, 1 and, written again, 0."""
    directories = [tmp_path_factory.mktemp("letters") for _ in range(3)]
    for directory, seed in zip(directories, "010", strict=True):
        assert main(["--out", str(directory), "--seed", seed]) == 0
    return directories


def rows_of(*paths):
    return [json.loads(line) for path in paths for line in path.open()]


def test_prompts_are_different_and_answers_are_right(seeds):
    first, *_ = (seeds[0] / "evaluation.jsonl").open()
    assert first == '{"prompt": "rircbp ->", "answer": "pbcrir"}\n'
    for name, num_rows in ROWS.items():
        rows = rows_of(seeds[0] / f"{name}.jsonl")
        assert len({row["prompt"] for row in rows}) == len(rows) == num_rows
        assert all(row["prompt"] == f"{row['answer'][::-1]} ->" for row in rows)
        assert {len(row["answer"]) for row in rows} == {4, 5, 6}


def test_no_seed_trains_on_a_problem_of_evaluation(seeds):
    training = rows_of(*(path / name for path in seeds[:2] for name in ("sft.jsonl", "rl.jsonl")))
    evaluation = {row["prompt"] for row in rows_of(seeds[0] / "evaluation.jsonl")}
    assert (len(evaluation), len(training)) == (512, 120_000)
    assert evaluation.isdisjoint(row["prompt"] for row in training)


def test_a_seed_decides_the_rows_of_training_and_nothing_else(seeds):
    first, other, again = ({p.name: p.read_bytes() for p in path.iterdir()} for path in seeds)
    assert first == again
    assert first["evaluation.jsonl"] == other["evaluation.jsonl"]
    files = {first["sft.jsonl"], first["rl.jsonl"], other["sft.jsonl"], other["rl.jsonl"]}
    assert len(files) == 4


def test_files_are_not_overwritten(seeds, capsys):
    assert main(["--out", str(seeds[0])]) == 1
    assert "sft.jsonl exists already" in capsys.readouterr().err
