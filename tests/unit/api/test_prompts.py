"""Prompts as callers have them: texts, rows of a provider, token ids of torch and of numpy."""

import copy

import numpy as np
import pytest
import torch

import verl_hpc
from tests.unit.api.test_data import write
from verl_hpc.api.prompts import asked
from verl_hpc.errors import DataError


@pytest.fixture
def rows(tmp_path):
    return write(tmp_path / "rows.jsonl")


@pytest.fixture
def marked(tokenizer):
    """Encodes texts between two tokens that it also pads with."""
    made = copy.deepcopy(tokenizer)
    encode, made.pad_token = made.encode, made.eos_token
    made.encode = lambda text, **_: [made.eos_token_id, *encode(text), made.eos_token_id]
    return made


def test_texts_and_rows_keep_what_looks_like_padding(marked, rows):
    end, (text, more) = marked.eos_token_id, (marked.encode(t) for t in ("one", "p0"))
    assert text[0] == text[-1] == end
    (problem,) = asked(["one"], marked)
    assert list(problem.prompt.ids) == text
    (batch, *_) = verl_hpc.DataProvider(rows, "jsonl", batch_size=1)
    (problem,) = asked(batch, marked)
    assert list(problem.prompt.ids) == more
    for padded in (torch.tensor([text]), [text]):
        assert list(asked(padded, marked)[0].prompt.ids) == text[1:-1]
        assert list(asked(padded, marked, torch.ones(1, len(text)))[0].prompt.ids) == text


def test_a_tuple_of_rows_may_have_references_in_a_tensor(tokenizer, rows):
    (batch, *_) = verl_hpc.DataProvider(rows, "jsonl", batch_size=2)
    found = asked(tuple(batch), tokenizer, references=torch.tensor([3, 4]))
    assert [int(problem.ground_truth) for problem in found] == [3, 4]
    assert [p.ground_truth for p in asked(tuple(batch), tokenizer)] == ["a0", "a1"]


@pytest.mark.parametrize(
    "ids",
    [
        np.array([[5, 6], [7, 8]]),
        np.array([[5, 6], [7, 8]], dtype=np.int32),
        [np.array([5, 6]), np.array([7, 8])],
        [[np.int64(5), 6], (7, np.int32(8))],
    ],
)
def test_token_ids_of_numpy_are_prompts(tokenizer, ids):
    found = asked(ids, tokenizer, np.ones((2, 2)))
    assert [problem.prompt.ids for problem in found] == [(5, 6), (7, 8)]
    assert all(type(token) is int for problem in found for token in problem.prompt.ids)
    assert [p.prompt.ids for p in asked(list(ids[0]), tokenizer)] == [(5, 6)]


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"references": "ab"}, "references = 'ab'; expected a list"),
        ({"references": 5}, "references = 5; expected a list"),
        ({"references": {"a": 1, "b": 2}}, "references = {'a': 1, 'b': 2}; expected a list"),
        ({"references": torch.tensor(5)}, r"references = tensor\(5\); expected a list"),
        ({"attention_mask": 5}, "attention_mask is int"),
        ({"attention_mask": ["1", "1"]}, "a row of attention_mask is str; expected whole"),
        ({"attention_mask": torch.ones(1, 1, 1)}, "attention_mask has 1 rows"),
    ],
)
def test_of_what_goes_with_prompts(tokenizer, given, words):
    with pytest.raises(DataError, match=words):
        asked([[1], [2]], tokenizer, **given)
