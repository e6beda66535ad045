"""The critic's clipped loss, token by token in plain Python."""

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import masks, numbers, shapes
from verl_hpc.algorithms.role_losses import clipped_value_loss


@st.composite
def batches(draw):
    shape = draw(shapes())
    return tuple(draw(numbers(shape)) for _ in range(3)), draw(masks(shape))


clips = st.sampled_from([None, 0.2, 0.5, 2.0])


@given(batches(), clips)
def test_losses_and_clipped_tokens(batch, clip):
    (values, old, returns), mask = batch
    losses, metrics = clipped_value_loss(values, old, returns, mask, clip)
    count = 0
    for b in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            v, o, r = (x[b, t].item() for x in (values, old, returns))
            near = v if clip is None else min(max(v, o - clip), o + clip)
            expected = 0.5 * max((v - r) ** 2, (near - r) ** 2)
            assert losses[b, t].item() == pytest.approx(expected, rel=1e-12)
            count += bool(mask[b, t]) and (near - r) ** 2 > (v - r) ** 2
    assert losses.dtype == torch.float64
    assert {name: value.item() for name, value in metrics.items()} == {"vf_clipfrac": count}


def slope(value, old, target, clip):
    """Derivative of a token's loss, where it has one."""
    if clip is None or abs(value - old) < clip:
        return value - target
    clipped = min(max(value, old - clip), old + clip)
    return value - target if (value - target) ** 2 > (clipped - target) ** 2 else 0.0


@given(batches(), clips)
def test_gradients_where_the_loss_is_smooth(batch, clip):
    (values, old, returns), mask = batch
    if clip is not None:
        moved = (values - old).abs()
        assume(((moved - clip).abs() > 1e-6).all())
        near = torch.clamp(values, old - clip, old + clip)
        crossing = ((values - returns) ** 2 - (near - returns) ** 2).abs()
        assume(((crossing > 1e-6) | (moved < clip)).all())
    leaf = values.clone().requires_grad_()
    losses, _ = clipped_value_loss(leaf, old, returns, mask, clip)
    weights = torch.arange(1.0, losses.numel() + 1).reshape(losses.shape).double()
    torch.where(mask.bool(), losses * weights, 0).sum().backward()
    for b in range(mask.shape[0]):
        for t in range(mask.shape[1]):
            v, o, r = (x[b, t].item() for x in (values, old, returns))
            expected = slope(v, o, r, clip) * weights[b, t].item() if mask[b, t] else 0.0
            assert leaf.grad[b, t].item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_a_value_clipped_on_its_way_to_the_target_stops():
    """And one that moved away from the target still gets its gradient."""
    values = torch.tensor([[1.0, -1.0]], dtype=torch.float64, requires_grad=True)
    old, returns = torch.zeros(1, 2), torch.full((1, 2), 2.0)
    losses, metrics = clipped_value_loss(values, old, returns, torch.ones(1, 2), 0.5)
    losses.sum().backward()
    assert losses.tolist() == [[0.5 * 1.5**2, 0.5 * 3**2]]
    assert (values.grad.tolist(), metrics["vf_clipfrac"]) == ([[0.0, -3.0]], 1)


def test_metrics_carry_no_gradient():
    values = torch.ones(1, 2, requires_grad=True)
    zero = torch.zeros(1, 2)
    for clip in (None, 0.5):
        losses, metrics = clipped_value_loss(values, zero, zero, zero, clip)
        assert losses.requires_grad
        assert losses.dtype == torch.float32
        assert not metrics["vf_clipfrac"].requires_grad
