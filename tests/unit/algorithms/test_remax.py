"""ReMax's advantages as explicit sums over the tokens that count."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import masks, numbers, shapes
from verl_hpc.algorithms.remax import remax


@st.composite
def batches(draw):
    shape = draw(shapes())
    return draw(numbers(shape)), draw(numbers(shape[:1])), draw(masks(shape, torch.float64))


@given(batches())
def test_a_token_earns_what_follows_it_beyond_the_greedy_answer(batch):
    rewards, baselines, mask = batch
    advantages, returns = remax(rewards, baselines, mask)
    for row in range(len(mask)):
        for t in range(mask.shape[1]):
            counts = bool(mask[row, t])
            after = [k for k in range(t, mask.shape[1]) if mask[row, k]]
            expected = counts * sum(float(rewards[row, k]) for k in after)
            assert float(returns[row, t]) == pytest.approx(expected, abs=1e-9)
            expected -= counts * float(baselines[row])
            assert float(advantages[row, t]) == pytest.approx(expected, abs=1e-9)


def test_one_reward_at_the_end_is_that_of_every_token():
    rewards = torch.tensor([[0.0, 0.0, 2.0], [0.0, 1.0, 0.0]])
    mask = torch.tensor([[1.0, 1.0, 1.0], [1.0, 1.0, 0.0]])
    advantages, returns = remax(rewards, torch.tensor([0.5, 1.5]), mask)
    assert returns.tolist() == [[2, 2, 2], [1, 1, 0]]
    assert advantages.tolist() == [[1.5, 1.5, 1.5], [-0.5, -0.5, 0]]
