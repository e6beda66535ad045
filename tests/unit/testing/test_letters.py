"""The quickstart's data."""

import json

import pytest

from verl_hpc.config.data import FilesConfig
from verl_hpc.data.overlap import count_overlap
from verl_hpc.data.sources import open_source
from verl_hpc.testing.letters import ROWS, main


@pytest.fixture(scope="module")
def seeds(tmp_path_factory):
    """Directories of seeds 0, 1 and, written again, 0."""
    directories = [tmp_path_factory.mktemp("letters") for _ in range(3)]
    for directory, seed in zip(directories, "010", strict=True):
        assert main(["--out", str(directory), "--seed", seed]) == 0
    return directories


def source(*paths):
    return open_source(FilesConfig(paths=[str(path) for path in paths]), needs="answer")


def test_prompts_are_different_and_answers_are_right(seeds):
    first, *_ = (seeds[0] / "evaluation.jsonl").open()
    assert first == '{"prompt": "rircbp ->", "answer": "pbcrir"}\n'
    for name, num_rows in ROWS.items():
        rows = [json.loads(line) for line in (seeds[0] / f"{name}.jsonl").open()]
        assert len({row["prompt"] for row in rows}) == len(rows) == num_rows
        assert all(row["prompt"] == f"{row['answer'][::-1]} ->" for row in rows)
        assert {len(row["answer"]) for row in rows} == {4, 5, 6}


def test_no_seed_trains_on_a_problem_of_evaluation(seeds):
    training = source(*(path / name for path in seeds[:2] for name in ("sft.jsonl", "rl.jsonl")))
    counts = count_overlap([training], source(seeds[0] / "evaluation.jsonl"))
    assert (counts.evaluation_prompts, counts.shared_prompts) == (512, 0)
    assert counts.training_rows == 120_000


def test_a_seed_decides_the_rows_of_training_and_nothing_else(seeds):
    first, other, again = ({p.name: p.read_bytes() for p in path.iterdir()} for path in seeds)
    assert first == again
    assert first["evaluation.jsonl"] == other["evaluation.jsonl"]
    files = {first["sft.jsonl"], first["rl.jsonl"], other["sft.jsonl"], other["rl.jsonl"]}
    assert len(files) == 4


def test_files_are_not_overwritten(seeds, capsys):
    assert main(["--out", str(seeds[0])]) == 1
    assert "sft.jsonl exists already" in capsys.readouterr().err
