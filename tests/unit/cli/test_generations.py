"""Reading what evaluations have saved."""

import json
from dataclasses import replace

import pytest

from verl_hpc.metrics.generations import Generation, line_of, write_generations

ONE = Generation(0, "aime24", 0, 0, "1 + 1?", "2", "it is 2", 5, False, 1.0, {"pred": 2.0})


@pytest.fixture
def run(tmp_path):
    """A run with answers of two steps; every second one is right."""
    (tmp_path / "config.yaml").write_text("name: r\n")
    for step in (5, 10):
        generations = [
            replace(ONE, step=step, set=name, row=i // 2, sample=i % 2, score=float(i % 2 == 0))
            for name in ("aime24", "gsm8k")
            for i in range(8)
        ]
        write_generations(tmp_path, step, map(line_of, generations))
    return tmp_path


def test_the_newest_evaluation_is_read_and_the_first_answers_shown(run, prints):
    out = prints("generations", run)
    assert out.startswith(f"{run}: answers of step 10; there are steps 5, 10\n")
    assert out.count("\n== ") == 10
    assert "== aime24 row 0, answer 0; score 1; pred 2; 5 tokens\n-- prompt\n1 + 1?\n" in out
    assert out.endswith("\n6 more; --all shows them\n")
    assert prints("generations", run, "--all").count("\n== ") == 16


CHOSEN = [
    (["--set", "gsm8k"], 8),
    (["--row", 3], 4),
    (["--wrong"], 8),
    (["--right", "--set", "aime24", "--row", 1], 1),
    (["--row", 99], 0),
]


@pytest.mark.parametrize(("words", "count"), CHOSEN)
def test_answers_are_chosen(run, words, count, prints):
    assert prints("generations", run, "--step", 5, *words).count("\n== ") == count
    rows = [json.loads(line) for line in prints("generations", run, "--json", *words).splitlines()]
    assert len(rows) == count
    assert all(row["step"] == 10 for row in rows)


def test_nothing_in_an_answer_reaches_the_terminal(run, prints):
    evil = replace(ONE, response="\x1b[2J\u202e", set="x\x07", extra={"\x1b]0;": 1.0}, step=11)
    write_generations(run, 11, [line_of(evil)])
    for words in ([], ["--json"]):
        out = prints("generations", run, *words)
        assert not set("\x1b\u202e\x07") & set(out)


NOT_THERE = [
    (["--step", 7], "--step 7: there are answers of steps 5, 10; choose one"),
    (["--set", "aime"], "--set aime: step 10 has aime24, gsm8k; choose one"),
]


@pytest.mark.parametrize(("words", "message"), NOT_THERE)
def test_what_is_not_there_is_said(run, words, message, refuses):
    assert message in refuses("generations", str(run), *map(str, words))


def test_a_run_without_answers_is_told_how_to_get_some(tmp_path, refuses):
    (tmp_path / "config.yaml").write_text("name: r\n")
    assert "no evaluation has saved answers; set evaluation.save_generations: true" in (
        refuses("generations", str(tmp_path))
    )
