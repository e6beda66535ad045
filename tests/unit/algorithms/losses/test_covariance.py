"""Clip-Cov and KL-Cov: which tokens are chosen over all ranks, and what becomes of them."""

import math
import statistics

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from pydantic import ValidationError

from tests.unit.algorithms.batches import deal, masks, numbers, on_parts, shapes
from tests.unit.algorithms.micro_batches import agrees, each, micro_batches
from verl_hpc.algorithms.loss import StepTokens
from verl_hpc.algorithms.losses.clip_cov import ClipCov
from verl_hpc.algorithms.losses.kl_cov import KlCov


@st.composite
def steps(draw):
    """(old, advantages, mask, random)."""
    shape = draw(shapes())
    return (
        draw(numbers(shape, -4.0, -0.1)),
        draw(numbers(shape)),
        draw(masks(shape)),
        draw(numbers(shape, 0.0, 1.0)),
    )


def covariances(old, advantages, mask):
    """Covariances of the tokens that count, by place."""
    places = [(b, t) for b, t in mask.nonzero().tolist()]
    if not places:
        return {}
    means = [statistics.fmean(float(x[p]) for p in places) for x in (old, advantages)]
    return {p: (float(old[p]) - means[0]) * (float(advantages[p]) - means[1]) for p in places}


def chosen(loss, step, data):
    """Places that a loss selects, the same for any deal."""
    whole = loss.select(StepTokens(*step))
    deals = [[*rows] for rows in deal(data.draw, len(step[0]))]

    def part(rows, reduce):
        return loss.select(StepTokens(*(x[rows] for x in step), reduce))

    for rows, found in zip(deals, on_parts(part, deals), strict=True):
        assert found.tolist() == whole[rows].tolist()
    return {(b, t) for b, t in whole.nonzero().tolist()}


@given(steps(), st.sampled_from([2e-4, 0.2, 0.5]), st.data())
def test_kl_cov_takes_the_largest(step, share, data):
    old, advantages, mask, _ = step
    found = covariances(old, advantages, mask)
    count = max(int(share * len(found)), 1)
    ordered = sorted(found, key=found.get, reverse=True)
    expected, rest = ordered[:count], ordered[count:]
    # The covariances of two tokens are equal but for rounding.
    assume(not rest or found[expected[-1]] - found[rest[0]] > 1e-9)
    assert chosen(KlCov(share=share), step, data) == set(expected)


@given(steps(), st.sampled_from([2e-4, 0.2, 0.5]), st.data())
def test_clip_cov_takes_random_ones_of_a_band(step, share, data):
    old, advantages, mask, random = step
    found = covariances(old, advantages, mask)
    loss = ClipCov(share=share, lower=-0.5, upper=2.0)
    band = [p for p, c in found.items() if -0.5 < c < 2.0]
    count = max(int(share * len(found)), 1)
    expected = sorted(band, key=lambda p: float(random[p]), reverse=True)[:count]
    assert chosen(loss, step, data) == set(expected)


def clip_cov(loss):
    """No loss for selected tokens that the clip leaves as they are."""

    def term(before, after, a, log_ratio, is_selected):
        ratio, bound = math.exp(float(log_ratio)), None
        if a > 0 and ratio > 1 + loss.clip_high:
            bound = 1 + loss.clip_high
        elif a < 0 and ratio < 1 - loss.clip_low:
            bound = 1 - loss.clip_low
        if bound is not None:
            value = torch.tensor(-a * bound, dtype=torch.float64)
        else:
            value = 0.0 * log_ratio.detach() if is_selected else -a * torch.exp(log_ratio)
        return value, bound is None and is_selected, bound is not None, -float(log_ratio)

    return each(("pg_clipfrac", "pg_clipfrac_ratio", "ppo_kl"), term)


def kl_cov(loss):
    """A penalty for selected tokens, whichever way they have gone."""

    def term(before, after, a, log_ratio, is_selected):
        distance = log_ratio if float(log_ratio) > 0 else -log_ratio
        value = -a * torch.exp(log_ratio)
        penalised = value + loss.coefficient * distance if is_selected else value
        return penalised, is_selected, abs(float(log_ratio))

    return each(("pg_covfrac", "ppo_kl"), term)


def any_selected(data, batch):
    """A selection, which may have tokens that do not count."""
    return data.draw(masks(tuple(batch[0].shape), torch.bool))


@given(micro_batches(), st.sampled_from([{}, {"clip_low": 0.1, "clip_high": 0.5}]), st.data())
def test_losses_gradients_and_metrics_of_clip_cov(batch, options, data):
    loss = ClipCov(**options)
    agrees(loss, clip_cov(loss), batch, data, any_selected(data, batch))


@given(micro_batches(), st.sampled_from([0.0, 0.5, 1.0]), st.data())
def test_losses_gradients_and_metrics_of_kl_cov(batch, coefficient, data):
    loss = KlCov(coefficient=coefficient)
    agrees(loss, kl_cov(loss), batch, data, any_selected(data, batch))


def test_an_empty_band_is_refused():
    with pytest.raises(ValidationError, match="lower = 5 is not below upper = 5"):
        ClipCov(lower=5.0)
