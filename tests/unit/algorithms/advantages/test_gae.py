"""Generalised advantages as explicit sums over the tokens that count."""

import math
import random
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.scored import Row, agrees, owners, rows, scored, whitened
from verl_hpc.algorithms.advantages.gae import Gae

factors = st.sampled_from([0.0, 0.5, 0.95, 1.0])


def advantages_of(row, gamma, lam):
    """A_t = sum over k of (gamma lam)^k delta_{t+k}; nothing follows the last token."""
    rewards, values = ([of[t] for t in row.counted] for of in (row.rewards, row.values))
    n, following = len(values), [*values[1:], 0.0]
    delta = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    found = [0.0] * len(row.mask)
    for i, t in enumerate(row.counted):
        found[t] = sum((gamma * lam) ** k * delta[i + k] for k in range(n - i))
    return found


def oracle(rows, gamma, lam, value_lam):
    raw = [advantages_of(row, gamma, lam) for row in rows]
    returns = [
        [a + v for a, v in zip(advantages_of(row, gamma, value_lam), row.values, strict=True)]
        for row in rows
    ]
    return whitened(raw, rows), returns


@given(rows(), owners, factors, factors, factors | st.none())
def test_against_explicit_sums(rows, owners, gamma, lam, value_lam):
    estimator = Gae(gamma=gamma, lam=lam, value_lam=value_lam)
    used = lam if value_lam is None else value_lam
    agrees(estimator, lambda r: oracle(r, gamma, lam, used), rows, owners)


@given(rows(), st.floats(-100, 100) | st.just(math.nan))
def test_tokens_of_the_environment_do_not_matter(rows, noise):
    """Whatever stands between two turns, or behind the response, may as well not be there."""

    def noisy(row, numbers):
        return [x if m else noise for x, m in zip(numbers, row.mask, strict=True)]

    disturbed = [
        replace(row, rewards=noisy(row, row.rewards), values=noisy(row, row.values)) for row in rows
    ]
    counts = torch.tensor([row.mask for row in rows]).bool()
    estimator = Gae(gamma=0.9, lam=0.8)
    for advantages, expected in zip(
        estimator(scored(disturbed)), estimator(scored(rows)), strict=True
    ):
        torch.testing.assert_close(advantages[counts], expected[counts], rtol=0, atol=0)


@pytest.mark.parametrize(
    "lam, expected", [(1.0, [1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4]), (0.0, [0.5, 3.5, 4])]
)
def test_special_cases_of_lambda(lam, expected):
    """lam = 1 is the return itself, lam = 0 the one-step target."""
    row = Row(0, 0.0, [1.0, 2.0, 4.0], [1, 1, 1], [0.5, -1.0, 3.0], 0.0)
    _, returns = Gae(gamma=0.5, lam=lam)(scored([row]))
    assert returns.tolist() == [expected]
    _, returns = Gae(gamma=0.5, lam=0.3, value_lam=lam)(scored([row]))
    assert returns.tolist() == [expected]


@pytest.mark.parametrize("width", [63, 64, 65, 700])
def test_long_responses(width):
    """Beyond the reach of one, or of a few, passes over them."""
    dice = random.Random(width)

    def numbers():
        return [dice.uniform(-3, 3) for _ in range(width)]

    some = [
        Row(0, 0.0, numbers(), [int(dice.random() < share) for _ in range(width)], numbers(), 0.0)
        for share in (1.0, 0.7, 0.0)
    ]
    computed = Gae(gamma=0.99, lam=0.95)(scored(some))
    for mine, expected in zip(computed, oracle(some, 0.99, 0.95, 0.95), strict=True):
        counts = torch.tensor([row.mask for row in some]).bool()
        wanted = torch.tensor(expected, dtype=torch.float64)
        torch.testing.assert_close(mine[counts], wanted[counts], rtol=1e-9, atol=1e-9)
