"""Prompts that training and evaluation have in common."""

import pytest

from tests.unit.data.conftest import files, write_jsonl
from verl_hpc.data.overlap import count_overlap, prompt_key
from verl_hpc.data.sources import open_source


def source(path, *prompts):
    return open_source(files(write_jsonl(path, [{"prompt": prompt} for prompt in prompts])))


def test_prompts_are_counted_and_rows_of_training_are_named(tmp_path):
    first = source(tmp_path / "a.jsonl", "1?", "2?", "1?", "9?")
    second = source(tmp_path / "b.jsonl", "8?", "3?")
    counts = count_overlap([first, second], source(tmp_path / "c.jsonl", "1?", "1?", "3?", "5?"))
    assert (counts.evaluation_rows, counts.evaluation_prompts) == (4, 3)
    assert (counts.training_rows, counts.shared_prompts) == (6, 2)
    assert [list(rows) for rows in counts.shared_training_rows] == [[0, 2], [1]]


def chat(*messages):
    return [{"role": role, "content": content} for role, content in messages]


COMPARED_PROMPTS = [
    ("1 + 1?", chat(("user", "1 + 1?")), True),
    ("1 +\n 1? ", "1 + 1?", True),
    ("1 + 1?", "1 + 1 ?", False),
    (chat(("system", "Add."), ("user", "1?")), chat(("user", "1?")), False),
    (chat(("user", "a"), ("user", "b")), chat(("user", "a user b")), False),
    (chat(("user", "1?")), chat(("system", "1?")), True),
    (chat(("system", "Add."), ("user", "1?")), "Add.\n\n1?", True),
    ("\ud800", "\ud800", True),
]


@pytest.mark.parametrize(("one", "other", "same"), COMPARED_PROMPTS)
def test_prompts_are_the_same_if_their_words_are(one, other, same):
    assert (prompt_key(one) == prompt_key(other)) is same
