"""Importance weights, token by token in plain Python."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.batches import masks, numbers, shapes
from verl_hpc.algorithms.correction import truncated_weights


@st.composite
def batches(draw):
    shape = draw(shapes())
    return draw(numbers(shape)), draw(numbers(shape)), draw(masks(shape))


@settings(deadline=None)
@given(batches(), st.sampled_from([0.5, 1.0, 2.0, 100.0]))
def test_weights_and_metrics_of_every_token(batch, upper):
    sampled, old, mask = batch
    weights, metrics = truncated_weights(sampled, old, mask, upper)
    total = truncated = 0.0
    for place in [(b, t) for b in range(mask.shape[0]) for t in range(mask.shape[1])]:
        ratio = math.exp(old[place].item() - sampled[place].item())
        assert weights[place].item() == pytest.approx(min(ratio, upper), rel=1e-12)
        total += mask[place].item() * min(ratio, upper)
        truncated += mask[place].item() * (ratio > upper)
    assert metrics["correction_weight"].item() == pytest.approx(total, rel=1e-12)
    assert metrics["correction_truncated"].item() == truncated


def test_what_is_masked_may_be_anything():
    sampled = torch.tensor([[0.0, math.nan, -math.inf]])
    _, metrics = truncated_weights(sampled, torch.zeros(1, 3), torch.tensor([[1, 0, 0]]), 2.0)
    assert {name: v.item() for name, v in metrics.items()} == {
        "correction_weight": 1.0,
        "correction_truncated": 0.0,
    }


@pytest.mark.parametrize("distance, exponent", [(-50.0, 20.0), (50.0, -20.0)])
def test_the_log_ratio_is_held_within_twenty(distance, exponent):
    zero = torch.zeros(1, 1, dtype=torch.float64)
    weights, _ = truncated_weights(zero + distance, zero, zero + 1, 1e12)
    assert weights.item() == pytest.approx(math.exp(exponent), rel=1e-12)


def test_weights_have_no_gradient_and_keep_their_type():
    old = torch.zeros(1, 2, requires_grad=True)
    weights, _ = truncated_weights(torch.zeros(1, 2), old, torch.ones(1, 2), 2.0)
    assert not weights.requires_grad
    assert weights.dtype == torch.float32


def test_the_weighted_mean_over_what_sampled_is_the_mean_under_the_trainer():
    """What importance sampling is for; the bound is above every ratio here."""
    sampler = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64)
    trainer = torch.tensor([0.2, 0.2, 0.6], dtype=torch.float64)
    value = torch.tensor([1.0, -2.0, 5.0], dtype=torch.float64)
    weights, _ = truncated_weights(sampler.log(), trainer.log(), torch.ones(3), 10.0)
    assert (sampler * weights * value).sum().item() == pytest.approx((trainer * value).sum().item())
