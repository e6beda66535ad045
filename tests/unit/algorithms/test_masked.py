"""Masked statistics against numpy on the valid numbers alone."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, masks, numbers, on_parts, shapes
from verl_hpc.algorithms.masked import masked_mean, masked_sum, whiten

MASK_TYPES = [torch.float64, torch.float32, torch.int64, torch.bool]


def valid(values, mask):
    return values.numpy()[mask.numpy().astype(bool)]


@given(st.data(), st.sampled_from(MASK_TYPES))
def test_sum_and_mean_are_those_of_the_valid_numbers(data, dtype):
    shape = data.draw(shapes())
    values, mask = data.draw(numbers(shape)), data.draw(masks(shape, dtype))
    left = valid(values, mask)
    assert masked_sum(values, mask).item() == pytest.approx(left.sum(), rel=1e-12, abs=1e-12)
    mean = masked_mean(values, mask)
    assert mean.item() == pytest.approx(left.sum() / (left.size + 1e-8), rel=1e-12, abs=1e-12)
    assert mean.dtype == torch.float64


def test_masked_places_may_hold_anything():
    values = torch.tensor([[1.0, math.nan, 3.0, math.inf]])
    mask = torch.tensor([[1, 0, 1, 0]])
    assert (masked_sum(values, mask), masked_mean(values, mask).item()) == (4, pytest.approx(2))


def whitened(left):
    """(x - mean) / sqrt(var + 1e-8), var unbiased, with the reference's 1e-8 in each mean."""
    mean = left.sum() / (left.size + 1e-8)
    var = ((left - mean) ** 2).sum() / (left.size + 1e-8) * left.size / (left.size - 1)
    return (left - mean) / math.sqrt(var + 1e-8)


@given(st.data(), st.sampled_from(MASK_TYPES))
def test_whitening(data, dtype):
    shape = data.draw(shapes())
    values, mask = data.draw(numbers(shape)), data.draw(masks(shape, dtype))
    left = valid(values, mask)
    found = whiten(values, mask)
    assert (found.shape, found.dtype) == (values.shape, torch.float64)
    if left.size > 1:
        np.testing.assert_allclose(valid(found, mask), whitened(left), rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("row", [[3.0], [2.0, 2.0, 2.0]])
def test_numbers_without_variance_become_zero(row):
    values = torch.tensor([row], dtype=torch.float64)
    found = whiten(values, torch.ones_like(values))
    assert found.abs().max().item() < 1e-3
    assert found.isfinite().all()


@settings(max_examples=30)
@given(st.data())
def test_ranks_whiten_as_one(data):
    shape = data.draw(shapes())
    values, mask = data.draw(numbers(shape)), data.draw(masks(shape))
    owned = deal(data.draw, shape[0])
    alone = whiten(values, mask)
    parts = on_parts(lambda rows, reduce: whiten(values[rows], mask[rows], reduce), owned)
    for rows, part in zip(owned, parts, strict=True):
        torch.testing.assert_close(part, alone[rows], rtol=1e-10, atol=1e-10)


def test_narrow_numbers_keep_their_type_and_wide_statistics():
    """A large mean: in float32 the variance of 1e4 + {0, 1} would lose half its digits."""
    values = 1e4 + torch.arange(512).reshape(2, 256).remainder(2).float()
    found = whiten(values, torch.ones(2, 256))
    assert found.dtype == torch.float32
    exact = whitened(values.double().numpy().ravel())
    np.testing.assert_allclose(found.numpy().ravel(), exact, rtol=1e-6)
