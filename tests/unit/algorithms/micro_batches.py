"""Micro-batches of plain tokens, and losses held to loops over them with gradients of their own."""

import math

import torch
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, masks, numbers, shapes
from verl_hpc.algorithms.loss import Tokens


@st.composite
def micro_batches(draw, reach=1.5):
    """(old, new, advantages, mask), (B, T) float64 each, and a weight for every token's loss; one
    in four has tokens that are far more, or far less, likely than before."""
    shape = draw(shapes())
    old = draw(numbers(shape, -4.0, -0.1))
    distance = draw(numbers(shape, -reach, reach)) * draw(st.sampled_from([0.01, 1.0, 1.0, 20.0]))
    # Probabilities are at most 1.
    new = (old + distance).clamp(max=-1e-3)
    if draw(st.booleans()):
        old, new = new, old
    advantages = draw(numbers(shape, -2.0, 2.0)) * draw(st.sampled_from([0.0, 1.0, 1.0, 1.0]))
    return old, new, advantages, draw(masks(shape)), draw(numbers(shape, 0.5, 2.0))


def agrees(loss, oracle, batch, data=None, selected=None):
    """Assert that losses, gradients and metrics are the oracle's, also in parts of a batch.

    Args:
        oracle: `oracle(old, new, advantages)`: of the tokens of a sequence that count, of which
            `new` are scalars to differentiate, (losses, sums of metrics); behind them it is told
            which are selected, if some are.
        data: draws which rows go together; parts may be empty.
        selected: (B, T) bool, tokens that the loss treats otherwise.
    """
    old, new, advantages, mask, weights = batch
    leaves = [[x.clone().requires_grad_() for x in row] for row in new]
    expected, total, sums = torch.zeros_like(new), torch.zeros((), dtype=new.dtype), {}
    for i, row in enumerate(mask):
        counted = [t for t, counts in enumerate(row) if counts]
        before, advantage = ([float(x[i, t]) for t in counted] for x in (old, advantages))
        chosen = [] if selected is None else [[bool(selected[i, t]) for t in counted]]
        losses, metrics = oracle(before, [leaves[i][t] for t in counted], advantage, *chosen)
        for t, value in zip(counted, losses, strict=True):
            expected[i, t] = float(value)
            total = total + weights[i, t] * value
        for name, value in metrics.items():
            sums[name] = sums.get(name, 0.0) + float(value)
    if total.requires_grad:
        total.backward()
    gradient = torch.tensor(
        [[0.0 if x.grad is None else float(x.grad) for x in row] for row in leaves], dtype=new.dtype
    )
    parts = [range(len(mask))] if data is None else deal(data.draw, len(mask))
    computed, slopes, told = torch.zeros_like(new), torch.zeros_like(new), {}
    for rows in map(list, parts):
        part = new[rows].clone().requires_grad_()
        chosen = [] if selected is None else [selected[rows]]
        losses, metrics = loss(Tokens(old[rows], part, advantages[rows], mask[rows], *chosen))
        assert losses.shape == part.shape and losses.dtype == torch.float64
        torch.where(mask[rows].bool(), losses * weights[rows], 0).sum().backward()
        computed[rows], slopes[rows] = torch.where(mask[rows].bool(), losses.detach(), 0), part.grad
        for name, value in metrics.items():
            assert not value.requires_grad
            told[name] = told.get(name, 0.0) + value.item()
    torch.testing.assert_close(computed, expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(slopes, gradient, rtol=1e-9, atol=1e-9)
    assert told.keys() == sums.keys()
    for name, value in sums.items():
        assert abs(told[name] - value) <= 1e-9 * max(1, abs(value)), name


def within_twenty(log_ratio):
    """A scalar; beyond 20 it has no gradient."""
    if abs(float(log_ratio)) <= 20:
        return log_ratio
    return torch.tensor(math.copysign(20.0, float(log_ratio)), dtype=torch.float64)


def each(names, term):
    """The oracle of a loss that treats every token by itself.

    Args:
        names: of the metrics.
        term: `term(old, new, advantage, log_ratio, *selected)` gives a token's loss and what it
            adds to each metric; the log-ratio is within 20.
    """

    def of_sequence(old, new, advantages, *selected):
        losses, sums = [], dict.fromkeys(names, 0.0)
        for before, after, a, *chosen in zip(old, new, advantages, *selected, strict=True):
            loss, *values = term(before, after, a, within_twenty(after - before), *chosen)
            losses.append(loss)
            for name, value in zip(names, values, strict=True):
                sums[name] += float(value)
        return losses, sums

    return of_sequence


def of_token(loss, old=0.0, new=0.0, advantage=1.0):
    """The loss of one token, and its gradient by the log-prob."""
    old, advantage = (torch.tensor([[x]], dtype=torch.float64) for x in (old, advantage))
    new = torch.tensor([[new]], dtype=torch.float64, requires_grad=True)
    losses, _ = loss(Tokens(old, new, advantage, torch.ones(1, 1)))
    losses.sum().backward()
    return losses.item(), new.grad.item()
