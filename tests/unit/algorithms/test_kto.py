"""KTO's loss against its formula, answer by answer."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import numbers
from tests.unit.algorithms.preferences.pairs import sigmoid
from verl_hpc.algorithms.preference import Kto, reference_point


def oracle(loss, ratio, desirable, kl):
    if desirable:
        return loss.desirable_weight * (1 - sigmoid(loss.beta * (ratio - kl)))
    return loss.undesirable_weight * (1 - sigmoid(loss.beta * (kl - ratio)))


OPTIONS = [{}, {"beta": 1.0, "desirable_weight": 1.33}, {"undesirable_weight": 0.0}]


@given(
    st.integers(0, 5),
    st.sampled_from(OPTIONS),
    st.sampled_from([0.0, 0.4, 200.0]),
    st.sampled_from([1.0, 100.0]),
    st.data(),
)
def test_losses_and_gradients_of_every_answer(count, options, kl, reach, data):
    loss, ratios = Kto(**options), reach * data.draw(numbers((count,)))
    kinds = data.draw(st.lists(st.booleans(), min_size=count, max_size=count))
    leaves = [x.clone().requires_grad_() for x in ratios]
    expected = [oracle(loss, a, kind, kl) for a, kind in zip(leaves, kinds, strict=True)]
    sum(expected, torch.zeros(()).requires_grad_()).backward()
    whole = ratios.clone().requires_grad_()
    losses = loss(
        whole, torch.tensor(kinds, dtype=torch.bool), torch.tensor(kl, dtype=torch.float64)
    )
    losses.sum().backward()
    assert losses.shape == (count,) and losses.dtype == torch.float64
    assert losses.tolist() == pytest.approx([float(x) for x in expected], rel=1e-9, abs=1e-9)
    assert whole.grad.tolist() == pytest.approx([float(x.grad) for x in leaves], rel=1e-9, abs=1e-9)


def test_by_hand():
    found = Kto(beta=0.5, desirable_weight=2.0)(
        torch.tensor([3.0, 3.0]), torch.tensor([True, False]), torch.tensor(1.0)
    )
    gain = 1 / (1 + math.exp(-1.0))
    assert found.tolist() == pytest.approx([2 * (1 - gain), gain])


def test_the_reference_point_is_no_less_than_nothing():
    assert [reference_point(torch.tensor(x)).item() for x in (-0.5, 0.0, 2.0)] == [0.0, 0.0, 2.0]
