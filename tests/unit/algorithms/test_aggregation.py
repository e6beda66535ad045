"""Aggregation by its definitions, and the same sum for any split of a batch."""

import math
from typing import get_args

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, masks, numbers, shapes
from verl_hpc.algorithms.aggregation import Aggregation, Mode

MODES = get_args(Mode)


def oracle(mode, losses, mask, scale):
    """One list of valid losses a sequence; sequences without any do not count."""
    rows = [
        [x for x, counts in zip(row, m, strict=True) if counts]
        for row, m in zip(losses.tolist(), mask.tolist(), strict=True)
    ]
    rows = [row for row in rows if row]
    num_tokens = sum(map(len, rows))
    if not rows:
        return 0.0
    return {
        "token-mean": lambda: sum(map(sum, rows)) / num_tokens,
        "token-sum": lambda: sum(map(sum, rows)),
        "seq-mean-token-sum": lambda: sum(map(sum, rows)) / len(rows),
        "seq-mean-token-mean": lambda: sum(sum(row) / len(row) for row in rows) / len(rows),
        "seq-mean-token-sum-norm": lambda: sum(sum(row) / scale for row in rows) / len(rows),
    }[mode]()


def aggregation(mode, mask, scale=1.0):
    return Aggregation(mode, int(mask.sum()), int((mask.sum(-1) > 0).sum()), scale)


@given(st.data(), st.sampled_from(MODES), st.sampled_from([torch.float64, torch.int64, torch.bool]))
def test_shares_of_ranks_and_micro_batches_add_up(data, mode, dtype):
    shape = data.draw(shapes())
    losses, mask = data.draw(numbers(shape)), data.draw(masks(shape, dtype))
    losses.requires_grad_()
    whole = aggregation(mode, mask, scale=512.0)
    expected = oracle(mode, losses.detach(), mask, 512.0)

    total = whole(losses, mask)
    assert total.dtype == torch.float64
    assert total.item() == pytest.approx(expected, rel=1e-12, abs=1e-14)
    total.backward()
    gradient, losses.grad = losses.grad, None
    shares = 0.0
    for rank in deal(data.draw, shape[0]):
        for micro_batch in deal(data.draw, len(rank)):
            rows = [rank[i] for i in micro_batch]
            share = whole(losses[rows], mask[rows])
            share.backward()
            shares += share.item()
    assert shares == pytest.approx(expected, rel=1e-12, abs=1e-14)
    torch.testing.assert_close(losses.grad, gradient, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", MODES)
def test_padding_may_hold_anything_and_be_wider(mode):
    losses = torch.tensor([[1.0, 2.0, math.nan], [math.inf, math.nan, math.nan]])
    mask = torch.tensor([[1, 1, 0], [0, 0, 0]])
    value = aggregation(mode, mask)(losses, mask)
    assert value.item() == pytest.approx(oracle(mode, losses, mask, 1.0))
    wide = [torch.nn.functional.pad(t, (0, 5)) for t in (losses, mask)]
    assert aggregation(mode, mask)(*wide) == value
    # An empty batch is zero.
    nothing = torch.zeros(2, 3)
    assert aggregation(mode, nothing)(nothing, nothing) == 0
    assert aggregation(mode, nothing)(nothing[:0], nothing[:0]) == 0
