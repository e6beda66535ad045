"""GDPO as a sum of rewards, each normalised in its group, by loops."""

import statistics
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.algorithms.batches import on_parts
from tests.unit.algorithms.scored import of_responses, owners, rows, scored, simple, whitened
from verl_hpc.algorithms.advantages.gdpo import Gdpo
from verl_hpc.errors import TrainingError


def components(rows):
    """Two rewards, made of what a row has."""
    return {"score": [row.score for row in rows], "form": [row.greedy * row.score for row in rows]}


def oracle(rows, weights, std):
    totals = [0.0] * len(rows)
    for weight, values in zip(weights, components(rows).values(), strict=True):
        for i, row in enumerate(rows):
            mates = [v for v, r in zip(values, rows, strict=True) if r.group == row.group]
            mean = statistics.fmean(mates) if len(mates) > 1 else 0.0
            scale = statistics.stdev(mates) if len(mates) > 1 else 1.0
            totals[i] += weight * (values[i] - mean) / (scale + 1e-6 if std == "group" else 1.0)
    return whitened(of_responses(rows, totals), rows)


@given(rows(), owners, st.sampled_from(["group", "none"]), st.sampled_from([None, (2.0, -0.5)]))
def test_against_the_formula(rows, owners, std, weights):
    estimator = Gdpo(rewards=("score", "form"), weights=weights, std=std)
    expected = torch.tensor(oracle(rows, weights or (1.0, 1.0), std), dtype=torch.float64)
    wide = {name: torch.tensor(v, dtype=torch.float64) for name, v in components(rows).items()}
    deals = [[i for i, o in enumerate(owners[: len(rows)]) if o == rank] for rank in (0, 1, 2)]

    def part(here, reduce):
        return estimator(scored(rows, here, reduce=reduce, components=wide))

    for here, found in zip(deals, on_parts(part, deals), strict=True):
        torch.testing.assert_close(found, expected[here], rtol=1e-6, atol=1e-6)


def test_a_reward_that_is_not_there_is_named():
    with pytest.raises(TrainingError, match="rewards: right is not there .* those that are: score"):
        Gdpo(rewards=("right",))(replace(simple([1.0], [0]), components={"score": torch.ones(1)}))


UNFIT_SETTINGS = [
    ({}, "rewards"),
    ({"rewards": ()}, "at least 1"),
    ({"rewards": ("a", "a")}, "each name stands there once"),
    ({"rewards": ("a", "b"), "weights": (1.0,)}, "expected one for each of the 2 rewards"),
    ({"rewards": ("a",), "std": "none", "epsilon": 0.1}, "epsilon = 0.1 has no effect"),
]


@pytest.mark.parametrize(("given", "words"), UNFIT_SETTINGS)
def test_settings_that_do_not_go_together(given, words):
    with pytest.raises(ValidationError, match=words):
        Gdpo(**given)
