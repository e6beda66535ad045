"""PPO's clipped loss, token by token in plain Python."""

import math

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.batches import masks, numbers, shapes
from verl_hpc.algorithms.policy_loss import ppo_clip

OPTIONS = [
    {},
    {"clip_low": 0.2, "clip_high": 0.28},
    {"dual_clip": None},
    {"clip_low": 0.1, "clip_high": 0.5, "dual_clip": 1.5},
]


def token_loss(old, new, advantage, clip_low=0.2, clip_high=0.2, dual_clip=3.0):
    """(loss, the clip was active, the dual clip was active) of one token."""
    ratio = math.exp(min(max(new - old, -20.0), 20.0))
    plain = -advantage * ratio
    clipped = -advantage * min(max(ratio, 1 - clip_low), 1 + clip_high)
    loss = max(plain, clipped)
    if dual_clip is not None and advantage < 0:
        return min(loss, -advantage * dual_clip), clipped > plain, loss > -advantage * dual_clip
    return loss, clipped > plain, False


@st.composite
def batches(draw):
    shape = draw(shapes())
    return tuple(draw(numbers(shape, -1.5, 1.5)) for _ in range(3)), draw(masks(shape))


@settings(deadline=None)
@given(batches(), st.sampled_from(OPTIONS))
def test_losses_and_metrics_of_every_token(batch, options):
    (old, new, advantages), mask = batch
    losses, metrics = ppo_clip(old, new, advantages, mask, **options)
    sums = {"pg_clipfrac": 0.0, "pg_clipfrac_lower": 0.0, "ppo_kl": 0.0}
    for place, counts in zip(
        [(b, t) for b in range(mask.shape[0]) for t in range(mask.shape[1])],
        mask.flatten().tolist(),
        strict=True,
    ):
        arguments = old[place].item(), new[place].item(), advantages[place].item()
        loss, clipped, lower = token_loss(*arguments, **options)
        assert losses[place].item() == pytest.approx(loss, rel=1e-12)
        sums["pg_clipfrac"] += counts * clipped
        sums["pg_clipfrac_lower"] += counts * lower
        sums["ppo_kl"] += counts * (arguments[0] - arguments[1])
    assert losses.dtype == torch.float64
    assert {name: value.item() for name, value in metrics.items()} == pytest.approx(sums, abs=1e-12)


@settings(deadline=None, max_examples=40)
@given(batches(), st.sampled_from(OPTIONS))
def test_gradients_where_the_loss_is_smooth(batch, options):
    (old, new, advantages), mask = batch
    ratios = (new - old).exp()
    for kink in (1 - options.get("clip_low", 0.2), 1 + options.get("clip_high", 0.2)):
        assume(((ratios - kink).abs() > 1e-4).all())
    assume(((ratios - (options.get("dual_clip", 3.0) or 3.0)).abs() > 1e-4).all())

    def losses(log_probs):
        return ppo_clip(old, log_probs, advantages, mask, **options)[0]

    assert torch.autograd.gradcheck(losses, new.requires_grad_())


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
    ratio, advantage, loss, gradient = CASES[name]
    new = torch.tensor([[math.log(ratio)]], dtype=torch.float64, requires_grad=True)
    losses, _ = ppo_clip(
        torch.zeros(1, 1), new, torch.tensor([[advantage]], dtype=torch.float64), torch.ones(1, 1)
    )
    losses.sum().backward()
    assert losses.item() == pytest.approx(loss, rel=1e-12)
    assert new.grad.item() == pytest.approx(gradient, rel=1e-12)


def test_an_on_policy_gradient_is_that_of_the_policy_gradient():
    old = torch.tensor([[-1.0, -2.0, -0.5]], dtype=torch.float64)
    new = old.clone().requires_grad_()
    advantages = torch.tensor([[0.7, -0.3, 2.0]], dtype=torch.float64)
    losses, metrics = ppo_clip(old, new, advantages, torch.ones(1, 3))
    losses.sum().backward()
    torch.testing.assert_close(new.grad, -advantages)
    assert [m.item() for m in metrics.values()] == [0, 0, 0]


@pytest.mark.parametrize("distance, exponent", [(50.0, 20.0), (-50.0, -20.0), (19.0, 19.0)])
def test_the_log_ratio_is_held_within_twenty(distance, exponent):
    zero = torch.zeros(1, 1, dtype=torch.float64)
    losses, metrics = ppo_clip(zero, zero + distance, zero - 1, zero + 1, dual_clip=None)
    assert losses.item() == pytest.approx(max(math.exp(exponent), 0.8), rel=1e-12)
    assert metrics["ppo_kl"].item() == -exponent


def test_metrics_carry_no_gradient_and_losses_keep_their_type():
    new = torch.zeros(1, 2, requires_grad=True)
    losses, metrics = ppo_clip(torch.zeros(1, 2), new, torch.ones(1, 2), torch.ones(1, 2))
    assert losses.requires_grad
    assert losses.dtype == torch.float32
    assert not any(value.requires_grad for value in metrics.values())


def test_metrics_leave_out_masked_tokens():
    old = torch.zeros(1, 3)
    new = torch.tensor([[1.0, 1.0, math.nan]])
    _, metrics = ppo_clip(old, new, torch.ones(1, 3), torch.tensor([[1, 0, 0]]))
    found = {name: value.item() for name, value in metrics.items()}
    assert found == {"pg_clipfrac": 1, "pg_clipfrac_lower": 0, "ppo_kl": -1}
