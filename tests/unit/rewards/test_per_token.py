"""Scores that are lists: a number for each token, or for each turn of the model."""

import numpy as np
import pytest
import torch

from tests.unit.rewards.test_scoring import returning
from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError, ScoreNotFiniteError
from verl_hpc.rewards.request import Request, batched
from verl_hpc.rewards.scorer import FunctionScorer, SumScorer, Term
from verl_hpc.rewards.scoring import Score, score_responses

TURNS = [("assistant", [5, 6]), ("environment", [7]), ("assistant", [8]), ("environment", [9, 9])]
"""The model, what an environment says to it, the model, and what it has said at last."""


def request(turns=TURNS):
    told = [{"role": role, "content": "", "token_ids": ids} for role, ids in turns]
    tokens = [token for _, ids in turns for token in ids]
    return Request(0, "mine", "72", {}, "out", response_ids=tokens, turns=told)


ONE_TURN = request([("assistant", [5, 6, 7])])
BY_TOKEN = [0.5, 0.0, -0.25, 1.0, 0.0, 2.0]
BY_TURN = [0.5, -2.0]


def score(function, asked, **settings):
    config = RewardConfig(function="mine.py:f", **settings)
    (found,) = score_responses(function, [asked], config)
    return found


def test_a_list_has_a_number_for_each_token_or_for_each_turn():
    cases = [
        (BY_TOKEN, request(), BY_TOKEN),
        (BY_TURN, request(), [0.0, 0.5, 0.0, -2.0, 0.0, 0.0]),
        ([4], ONE_TURN, [0.0, 0.0, 4.0]),
        ([1, 2, True], ONE_TURN, [1.0, 2.0, 1.0]),
        ([7.0], request([("assistant", [3])]), [7.0]),
        ([], request([]), []),
    ]
    for given, asked, expected in cases:
        scored = score(returning(given), asked)
        assert scored == Score(sum(expected), per_token=expected), given
        assert score(returning({"score": given, "acc": 1.0}), asked).per_token == expected
        assert score(returning({"score": given, "acc": 1.0}), asked).metrics == {"acc": 1.0}


def test_arrays_and_tensors_are_lists():
    for kind in (tuple, np.array, lambda v: np.array(v, np.float32), torch.tensor):
        assert score(returning(kind(BY_TOKEN)), request()).per_token == BY_TOKEN
        assert score(returning(kind(BY_TURN)), request()).value == -1.5


def test_a_function_of_a_whole_list_gives_lists_too():
    config = RewardConfig(function="mine.py:f")
    function = batched(lambda _: [BY_TURN, 1.0, {"score": BY_TOKEN}])
    found = score_responses(function, [request()] * 3, config)
    assert [one.value for one in found] == [-1.5, 1.0, 3.25]
    assert [bool(one.per_token) for one in found] == [True, False, True]


def test_a_list_of_another_length_names_both_lengths():
    told = (
        r"the score is a list of {} numbers, and the response has 6 tokens in 2 turns of the "
        r"model; give one number for each token, or one for each turn"
    )
    for given in ([0.0] * 5, [0.0] * 7, [0.0], [], torch.zeros(3)):
        with pytest.raises(RewardError, match=told.format(len(given))):
            score(returning(given), request())
        found = score(returning(given), request(), on_error="zero")
        assert (found.value, found.per_token) == (0.0, []) and found.error


def test_each_number_of_a_list_is_finite():
    for given in (float("nan"), float("inf")):
        with pytest.raises(ScoreNotFiniteError, match=rf"the score is {given}; expected a finite"):
            score(returning([0.0, given]), request())
    for given in ([0.0, "1"], [0.0, [1.0]], np.zeros((2, 2)), {"score": [None, 1.0]}):
        with pytest.raises(RewardError, match="expected a number"):
            score(returning(given), request())


def test_terms_that_are_lists_are_added_token_by_token():
    def term(name, weight, value):
        config = RewardConfig(function="mine.py:f")
        return Term(name, weight, FunctionScorer(returning(value), config))

    parts = [term("a", 2.0, BY_TOKEN), term("b", 0.5, 3.0), term("c", -1.0, BY_TURN)]
    (combined,) = SumScorer(parts)([request()])
    assert combined.value == 2 * 3.25 + 0.5 * 3.0 + 1.5
    assert combined.per_token == [1.0, -0.5, -0.5, 4.0, 0.0, 4.0]
    assert (combined.metrics["a"], combined.metrics["c"]) == (3.25, -1.5)
    (numbers,) = SumScorer([term("a", 2.0, 1.0)])([request()])
    assert numbers.per_token == []
