"""Generalised advantages as explicit sums over the tokens that count."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, masks, numbers, on_parts, shapes
from tests.unit.algorithms.test_masked import whitened
from verl_hpc.algorithms.gae import gae


def advantages_of_row(rewards, values, gamma, lam):
    """A_t = sum over k of (gamma lam)^k delta_{t+k}; nothing follows the last token."""
    n = len(values)
    following = [*values[1:], 0.0]
    delta = [rewards[t] + gamma * following[t] - values[t] for t in range(n)]
    return [sum((gamma * lam) ** k * delta[t + k] for k in range(n - t)) for t in range(n)]


def oracle(rewards, values, mask, gamma, lam):
    """(advantages before whitening, returns), NaN where the mask is 0."""
    advantages = np.full(mask.shape, np.nan)
    for row in range(len(mask)):
        counts = mask[row].numpy().astype(bool)
        r, v = rewards[row].numpy()[counts], values[row].numpy()[counts]
        advantages[row, counts] = advantages_of_row(r.tolist(), v.tolist(), gamma, lam)
    return advantages, advantages + values.numpy()


@st.composite
def batches(draw, dtype=torch.float64):
    shape = draw(shapes())
    return draw(numbers(shape)), draw(numbers(shape)), draw(masks(shape, dtype))


factors = st.sampled_from([0.0, 0.5, 0.95, 1.0])


@settings(deadline=None)
@given(st.sampled_from([torch.float64, torch.int64, torch.bool]).flatmap(batches), factors, factors)
def test_against_explicit_sums(batch, gamma, lam):
    rewards, values, mask = batch
    advantages, returns = gae(rewards, values, mask, gamma, lam)
    raw, expected = oracle(rewards, values, mask, gamma, lam)
    counts = mask.numpy().astype(bool)
    assert advantages.dtype == returns.dtype == torch.float64
    np.testing.assert_allclose(returns.numpy()[counts], expected[counts], rtol=1e-12, atol=1e-12)
    assert (advantages.numpy()[~counts] == 0).all()
    if counts.sum() > 1:
        np.testing.assert_allclose(
            advantages.numpy()[counts], whitened(raw[counts]), rtol=1e-9, atol=1e-9
        )


@settings(deadline=None)
@given(batches(), st.floats(-100, 100) | st.just(math.nan))
def test_tokens_of_the_environment_do_not_matter(batch, noise):
    """Whatever stands between two turns, or behind the response, may as well not be there."""
    rewards, values, mask = batch
    outside = mask == 0
    disturbed = gae(
        torch.where(outside, noise, rewards), torch.where(outside, noise, values), mask, 0.9, 0.8
    )
    for found, expected in zip(disturbed, gae(rewards, values, mask, 0.9, 0.8), strict=True):
        torch.testing.assert_close(found[~outside], expected[~outside], rtol=0, atol=0)


def test_a_gap_joins_the_turns_around_it():
    rewards = torch.tensor([[0.5, 9.0, 9.0, 1.0]], dtype=torch.float64)
    values = torch.tensor([[0.25, 7.0, 7.0, 0.75]], dtype=torch.float64)
    mask = torch.tensor([[1, 0, 0, 1]])
    joined = gae(rewards[:, [0, 3]], values[:, [0, 3]], mask[:, [0, 3]], 0.9, 0.5)
    found = gae(rewards, values, mask, 0.9, 0.5)
    for whole, short in zip(found, joined, strict=True):
        torch.testing.assert_close(whole[:, [0, 3]], short)


def test_special_cases_of_lambda():
    """lam = 1 is the return itself, lam = 0 the one-step target."""
    rewards = torch.tensor([[1.0, 2.0, 4.0]], dtype=torch.float64)
    values = torch.tensor([[0.5, -1.0, 3.0]], dtype=torch.float64)
    mask = torch.ones(1, 3)
    _, returns = gae(rewards, values, mask, 0.5, 1.0)
    assert returns.tolist() == [[1 + 0.5 * (2 + 0.5 * 4), 2 + 0.5 * 4, 4]]
    _, returns = gae(rewards, values, mask, 0.5, 0.0)
    assert returns.tolist() == [[1 - 0.5, 2 + 1.5, 4]]


@settings(deadline=None, max_examples=30)
@given(st.data())
def test_ranks_agree_with_one_rank(data):
    rewards, values, mask = data.draw(batches())
    owned = deal(data.draw, len(mask))
    alone = gae(rewards, values, mask, 0.9, 0.8)
    parts = on_parts(
        lambda rows, reduce: gae(rewards[rows], values[rows], mask[rows], 0.9, 0.8, reduce), owned
    )
    for rows, part in zip(owned, parts, strict=True):
        for found, whole in zip(part, alone, strict=True):
            torch.testing.assert_close(found, whole[rows], rtol=1e-10, atol=1e-10)


def test_narrow_numbers_stay_narrow():
    ones = torch.ones(2, 3)
    assert [t.dtype for t in gae(ones, ones, ones, 1.0, 1.0)] == [torch.float32] * 2


def test_one_token_in_all():
    one = torch.ones(1, 1, dtype=torch.float64)
    advantages, returns = gae(3 * one, one, one, 0.9, 0.9)
    assert advantages.item() == pytest.approx(0, abs=1e-3)
    assert returns.item() == 3
