"""Pairs of answers as tokens, and losses held to loops over them with gradients of their own."""

from dataclasses import dataclass

import torch
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, masks, numbers
from verl_hpc.algorithms.preference import answers_of


@dataclass(frozen=True)
class Answer:
    """Sums over the tokens of an answer that count; `policy` is differentiable."""

    policy: torch.Tensor
    reference: float
    length: int

    @property
    def ratio(self):
        return self.policy - self.reference

    @property
    def mean(self):
        return self.policy / max(self.length, 1)


@st.composite
def pairs(draw):
    """(policy, reference, mask), (2 B, T) float64 each: neighbours are chosen and rejected. One in
    four batches has answers that are far more, or far less, likely than under the reference."""
    shape = 2 * draw(st.integers(1, 3)), draw(st.integers(1, 6))
    reference = draw(numbers(shape, -4.0, -0.1))
    distance = draw(numbers(shape, -1.0, 1.0)) * draw(st.sampled_from([0.01, 1.0, 1.0, 150.0]))
    return (reference + distance).clamp(max=-1e-3), reference, draw(masks(shape))


def log_sigmoid(x):
    """log(1 / (1 + exp(-x))), by its two halves."""
    if float(x) > 0:
        return -torch.log1p(torch.exp(-x))
    return x - torch.log1p(torch.exp(x))


def sigmoid(x):
    return torch.exp(log_sigmoid(x))


def agrees(loss, oracle, batch, data):
    """Losses and gradients equal the oracle's, however the pairs are dealt to micro-batches.

    Args:
        oracle: of a chosen and a rejected `Answer`, the loss.
    """
    policy, reference, mask = batch
    leaves = [[x.clone().requires_grad_() for x in row] for row in policy]

    def answer(i):
        counted = [t for t in range(mask.shape[1]) if mask[i, t]]
        total = sum([leaves[i][t] for t in counted], torch.zeros((), dtype=torch.float64))
        return Answer(total, sum(float(reference[i, t]) for t in counted), len(counted))

    num_pairs = len(policy) // 2
    expected = [oracle(answer(2 * i), answer(2 * i + 1)) for i in range(num_pairs)]
    total = sum((i + 1) * value for i, value in enumerate(expected))
    if total.requires_grad:
        total.backward()
    slopes = torch.tensor(
        [[0.0 if x.grad is None else float(x.grad) for x in row] for row in leaves],
        dtype=torch.float64,
    )
    values, gradient = torch.zeros(num_pairs, dtype=torch.float64), torch.zeros_like(policy)
    for part in deal(data.draw, num_pairs):
        rows = [row for i in part for row in (2 * i, 2 * i + 1)]
        leaf = policy[rows].clone().requires_grad_()
        given = None if loss.reference_free else reference[rows]
        losses = loss(*answers_of(leaf, mask[rows], given).pairs())
        assert losses.shape == (len(part),) and losses.dtype == torch.float64
        (losses * torch.tensor([i + 1 for i in part])).sum().backward()
        values[part], gradient[rows] = losses.detach(), leaf.grad
    wanted = torch.tensor([float(value) for value in expected], dtype=torch.float64)
    torch.testing.assert_close(values, wanted, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(gradient, slopes, rtol=1e-9, atol=1e-9)
