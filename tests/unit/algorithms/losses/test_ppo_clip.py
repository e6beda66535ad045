"""PPO's clipped loss, token by token."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.micro_batches import agrees, each, micro_batches, of_token
from verl_hpc.algorithms.loss import Tokens
from verl_hpc.algorithms.losses.ppo_clip import PpoClip

OPTIONS = [
    {},
    {"clip_low": 0.2, "clip_high": 0.28},
    {"dual_clip": None},
    {"clip_low": 0.1, "clip_high": 0.5, "dual_clip": 1.5},
]


def oracle(loss):
    def term(before, after, a, log_ratio):
        ratio = torch.exp(log_ratio)
        plain, clipped = -a * ratio, -a * (1 + loss.clip_high)
        if float(ratio) < 1 - loss.clip_low:
            clipped = -a * (1 - loss.clip_low)
        elif float(ratio) <= 1 + loss.clip_high:
            clipped = plain
        is_clipped = float(clipped) > float(plain)
        value = clipped if is_clipped else plain
        is_lower = a < 0 and loss.dual_clip is not None and float(value) > -a * loss.dual_clip
        if is_lower:
            value = torch.tensor(-a * loss.dual_clip, dtype=torch.float64)
        return value, is_clipped, is_lower, -log_ratio.detach()

    return each(("pg_clipfrac", "pg_clipfrac_lower", "ppo_kl"), term)


@given(micro_batches(), st.sampled_from(OPTIONS), st.data())
def test_losses_gradients_and_metrics_of_every_token(batch, options, data):
    loss = PpoClip(**options)
    agrees(loss, oracle(loss), batch, data)


CASES = {
    "better and in range": (1.1, 1.0, -1.1, -1.1),
    "better and too far": (1.5, 1.0, -1.2, 0.0),
    "better and too little": (0.5, 1.0, -0.5, -0.5),
    "worse and in range": (0.9, -1.0, 0.9, 0.9),
    "worse and low enough": (0.5, -1.0, 0.8, 0.0),
    "worse and high": (2.0, -1.0, 2.0, 2.0),
    "worse and beyond the dual clip": (5.0, -1.0, 3.0, 0.0),
    "neither": (1.1, 0.0, 0.0, 0.0),
}


@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_by_hand(name):
    """d loss / d log_prob is the loss itself where it moves with the ratio, else 0."""
    ratio, advantage, *expected = CASES[name]
    found = of_token(PpoClip(), 0.0, math.log(ratio), advantage)
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("distance, exponent", [(50.0, 20.0), (-50.0, -20.0), (19.0, 19.0)])
def test_the_log_ratio_is_held_within_twenty(distance, exponent):
    value, _ = of_token(PpoClip(dual_clip=None), 0.0, distance, -1.0)
    assert value == pytest.approx(max(math.exp(exponent), 0.8), rel=1e-12)


def test_losses_keep_their_type():
    new = torch.zeros(1, 2, requires_grad=True)
    losses, _ = PpoClip()(Tokens(torch.zeros(1, 2), new, torch.ones(1, 2), torch.ones(1, 2)))
    assert losses.requires_grad
    assert losses.dtype == torch.float32


def test_metrics_leave_out_masked_tokens():
    new = torch.tensor([[1.0, 1.0, math.nan]])
    mask = torch.tensor([[1, 0, 0]])
    _, metrics = PpoClip()(Tokens(torch.zeros(1, 3), new, torch.ones(1, 3), mask))
    found = {name: value.item() for name, value in metrics.items()}
    assert found == {"pg_clipfrac": 1, "pg_clipfrac_lower": 0, "ppo_kl": -1}
