"""The loss of a pair of scores."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import numbers
from tests.unit.algorithms.preferences.pairs import log_sigmoid
from verl_hpc.algorithms.preference import bradley_terry


def test_the_loss_is_minus_the_log_of_the_chance_to_choose_right():
    chosen = torch.tensor([0.0, 2.0, -1.0, 60.0, -60.0], dtype=torch.float64)
    rejected = torch.tensor([0.0, 0.5, 1.0, -60.0, 60.0], dtype=torch.float64)
    found = bradley_terry(chosen, rejected).tolist()
    for loss, s, r in zip(found, chosen.tolist(), rejected.tolist(), strict=True):
        # exp(-120) is nothing beside 1, and log(1 + exp(120)) is 120.
        expected = math.log1p(math.exp(r - s)) if r - s < 100 else r - s
        assert loss == pytest.approx(expected, rel=1e-12)


@given(st.integers(0, 5), st.sampled_from([1.0, 3.0, 100.0]), st.data())
def test_losses_and_gradients_of_every_pair(count, reach, data):
    scores = reach * data.draw(numbers((2, count)))
    leaves = [[score.clone().requires_grad_() for score in row] for row in scores]
    expected = [-log_sigmoid(chosen - rejected) for chosen, rejected in zip(*leaves, strict=True)]
    sum(((i + 1) * x for i, x in enumerate(expected)), torch.zeros(()).requires_grad_()).backward()
    whole = scores.clone().requires_grad_()
    found = bradley_terry(whole[0], whole[1])
    (found * torch.arange(1, count + 1)).sum().backward()
    assert found.tolist() == pytest.approx([float(x) for x in expected], rel=1e-9, abs=1e-9)
    for row, of_row in zip(whole.grad.tolist(), leaves, strict=True):
        assert row == pytest.approx([float(x.grad) for x in of_row], rel=1e-9, abs=1e-9)


def test_the_gradient_pushes_a_pair_apart_by_as_much_as_it_is_wrong():
    scores = torch.tensor([0.3, 1.0], dtype=torch.float64, requires_grad=True)
    bradley_terry(scores[:1], scores[1:]).sum().backward()
    wrong = 1 / (1 + math.exp(0.3 - 1.0))
    assert scores.grad.tolist() == pytest.approx([-wrong, wrong])
