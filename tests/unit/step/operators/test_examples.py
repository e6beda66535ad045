"""Rows to examples: what is kept, cut and trained on."""

import logging

import pytest

from tests.unit.config.trees import parse
from verl_hpc.data.problem import Problem
from verl_hpc.data.prompts import EncodedAnswer, Encoder
from verl_hpc.errors import DataError
from verl_hpc.step.batch import StepRows
from verl_hpc.step.operators.assign import AssignSettings
from verl_hpc.step.operators.examples import ExampleSettings, examples
from verl_hpc.testing.local_run import LetterTokenizer, local_place

ROWS = [("ab", "c"), ("abcdefgh", "d"), ("k", "edcba")]


class Problems:
    def read(self, rows):
        return [Problem(row, ROWS[row][0], answer=ROWS[row][1]) for row in rows]


def encoded(rows, **limits):
    limits |= {"max_prompt_tokens": 5, "max_response_tokens": 4}
    config = parse(recipe="sft", rollout=limits)
    assign = AssignSettings(config, {"train": 1}, 6)
    settings = ExampleSettings(Problems(), Encoder(LetterTokenizer()), assign)
    (samples, columns), metrics = examples(local_place(), settings, StepRows(2, rows))
    return samples, columns, metrics


def test_answers_end_their_text_or_are_cut(caplog):
    with caplog.at_level(logging.WARNING):
        samples, columns, metrics = encoded([0, 1, 2], overlong_prompt="drop")
    assert [t.tolist() for t in columns["tokens"]] == [[1, 2, 3, 0], [11, 5, 4, 3, 2]]
    assert [m.tolist() for m in columns["mask"]] == [[1, 1], [1, 1, 1, 1]]
    expected = [(2, 2, False), (1, 4, True)]
    assert [(s.prompt_length, s.response_length, s.truncated) for s in samples] == expected
    assert samples.owned_by("train", 0) == columns.positions == [0, 1]
    assert [list(batch) for batch in samples.mini_batches] == [[0, 1]]
    assert metrics["prompt_length/num_dropped"] == 1
    assert metrics["response_length/clip_ratio"] == 0.5
    assert "step 2: 1 of 3 prompts dropped" in caplog.text


def test_what_others_say_between_turns_is_not_learned():
    class Turns(Encoder):
        def example(self, problem, num_answers):
            return [1, 2], [EncodedAnswer([3, 4, 5, 6], [1, 0, 1, 1])]

    config = parse(recipe="sft", rollout={"max_prompt_tokens": 5, "max_response_tokens": 3})
    settings = ExampleSettings(Problems(), Turns(None), AssignSettings(config, {"train": 1}, 6))
    (samples, columns), _ = examples(local_place(), settings, StepRows(2, [0]))
    assert columns["tokens"][0].tolist() == [1, 2, 3, 4, 5]
    assert columns["mask"][0].tolist() == [1, 0, 1]
    assert samples.samples[0].truncated


def test_nothing_left_and_overlong_prompts_are_refused():
    with pytest.raises(DataError, match="step 2: every prompt of data.train was dropped"):
        encoded([1], overlong_prompt="drop")
    with pytest.raises(DataError, match="max_prompt_tokens"):
        encoded([0, 1], overlong_prompt="error")
