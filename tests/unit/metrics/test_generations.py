"""Answers of evaluations: their file, and what a reader makes of it."""

import json
import math
from dataclasses import replace

import pytest

from verl_hpc.errors import DataError
from verl_hpc.metrics.generations import (
    Generation,
    file_of,
    forget_after,
    generation_steps,
    line_of,
    read_generations,
    write_generations,
)

ONE = Generation(10, "aime24", 3, 0, "1?", "1", "it is \x1b[31m2 \u202e", 5, True, 0.5, {"pred": 2})
ALL = [ONE, replace(ONE, sample=1), replace(ONE, row=4), replace(ONE, set="gsm8k")]


def write(directory, step=10, generations=ALL):
    return write_generations(directory, step, map(line_of, generations))


def names(directory):
    return sorted(path.name for path in (directory / "evaluations").iterdir())


def test_what_is_written_is_read_in_order(tmp_path):
    assert write(tmp_path) == file_of(tmp_path, 10)
    assert names(tmp_path) == ["step_000010.jsonl"]
    assert (list(read_generations(tmp_path, 10)), generation_steps(tmp_path)) == (ALL, [10])


def test_a_terminal_obeys_nothing_in_the_file(tmp_path):
    text = write(tmp_path).read_bytes()
    assert all(byte >= 32 or byte == 10 for byte in text)
    assert text.isascii()


def test_figures_that_are_no_numbers_of_json_survive(tmp_path):
    line = write(tmp_path, 1, [replace(ONE, extra={"a": math.inf, "b": math.nan})]).read_text()
    assert json.loads(line)["extra"] == {"a": "inf", "b": "nan"}
    (found,) = read_generations(tmp_path, 1)
    assert found.extra["a"] == math.inf
    assert math.isnan(found.extra["b"])


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "evaluations").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="is a link"):
        write(tmp_path)
    assert list((tmp_path / "elsewhere").iterdir()) == []


def test_a_run_that_resumes_forgets_what_it_does_again(tmp_path):
    for step in (5, 10, 15):
        write(tmp_path, step)
    (tmp_path / "evaluations" / "notes.txt").write_text("mine")
    forget_after(tmp_path, 10)
    assert names(tmp_path) == ["notes.txt", "step_000005.jsonl", "step_000010.jsonl"]
    forget_after(tmp_path / "gone", 10)


@pytest.mark.parametrize(
    "line",
    ["", "[1]", '{"step": 1}', "x", '{"row": "a"}', "[" * 100_000,
     json.dumps({**vars(ONE), "extra": {"a": "b"}}), json.dumps({**vars(ONE), "score": None})],
)  # fmt: skip
def test_a_line_that_is_none_is_named(tmp_path, line):
    path = write(tmp_path)
    with path.open("a") as file:
        file.write(line + "\n")
    with pytest.raises(DataError, match="line 5: no answer that was saved here"):
        list(read_generations(tmp_path, 10))


def test_a_step_without_answers_is_named(tmp_path):
    with pytest.raises(DataError, match=r"step_000003\.jsonl: cannot be read"):
        list(read_generations(tmp_path, 3))
