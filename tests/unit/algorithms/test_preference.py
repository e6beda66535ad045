"""The loss of a pair of scores."""

import math

import pytest
import torch

from verl_hpc.algorithms.preference import bradley_terry


def test_the_loss_is_minus_the_log_of_the_chance_to_choose_right():
    chosen = torch.tensor([0.0, 2.0, -1.0, 60.0, -60.0], dtype=torch.float64)
    rejected = torch.tensor([0.0, 0.5, 1.0, -60.0, 60.0], dtype=torch.float64)
    found = bradley_terry(chosen, rejected).tolist()
    for loss, s, r in zip(found, chosen.tolist(), rejected.tolist(), strict=True):
        # exp(-120) is nothing beside 1, and log(1 + exp(120)) is 120.
        expected = math.log1p(math.exp(r - s)) if r - s < 100 else r - s
        assert loss == pytest.approx(expected, rel=1e-12)


def test_the_gradient_pushes_a_pair_apart_by_as_much_as_it_is_wrong():
    scores = torch.tensor([0.3, 1.0], dtype=torch.float64, requires_grad=True)
    bradley_terry(scores[:1], scores[1:]).sum().backward()
    wrong = 1 / (1 + math.exp(0.3 - 1.0))
    assert scores.grad.tolist() == pytest.approx([-wrong, wrong])
