"""Importance weights and rejections, token by token in plain Python."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, masks, numbers, on_parts, shapes
from verl_hpc.algorithms.correction import CorrectionConfig, correct

NAMES = ("correction_weight", "correction_truncated", "correction_left_out")


@st.composite
def batches(draw):
    shape = draw(shapes())
    near = draw(st.sampled_from([0.01, 1.0, 1.0]))
    old = draw(numbers(shape))
    return old + near * draw(numbers(shape)), old, draw(masks(shape))


def clamped(x):
    return min(max(x, -20.0), 20.0)


def oracle(config, sampled, old, mask):
    """(weights, mask, metrics) as lists."""
    weights, kept, beyond = [], [], 0
    for s_row, o_row, m_row in zip(sampled.tolist(), old.tolist(), mask.tolist(), strict=True):
        differences = [o - s for s, o, m in zip(s_row, o_row, m_row, strict=True) if m]
        total = sum(differences)
        rejected = False
        if config.reject is not None:
            by = len(differences) if config.reject.ratio == "geometric_mean" else 1
            ratio = math.exp(clamped(total / max(by, 1)))
            rejected = not config.reject.lower <= ratio <= config.reject.upper
        w_row, k_row = [], []
        for s, o, m in zip(s_row, o_row, m_row, strict=True):
            ratio = {"token": math.exp(clamped(o - s)), "sequence": math.exp(clamped(total))}.get(
                config.weights, 1.0
            )
            is_beyond = ratio > config.upper or ratio < config.lower
            beyond += bool(m) and is_beyond
            keep = bool(m) and not rejected and not (is_beyond and config.outside == "leave_out")
            w_row.append(min(ratio, config.upper) if keep else 0.0)
            k_row.append(float(keep))
        weights.append(w_row)
        kept.append(k_row)
    num_kept, num = sum(map(sum, kept)), float(mask.sum())
    mean = sum(map(sum, weights)) / (num_kept + 1e-8)
    if config.normalise:
        by = mean
        if config.weights == "sequence":
            of_sequences = [max(row) for row, k in zip(weights, kept, strict=True) if any(k)]
            by = sum(of_sequences) / (len(of_sequences) + 1e-8)
        weights = [[w / max(by, 1e-8) for w in row] for row in weights]
    shares = (mean, beyond / (num + 1e-8), (num - num_kept) / (num + 1e-8))
    return weights, kept, dict(zip(NAMES, shares, strict=True))


GEOMETRIC = {"ratio": "geometric_mean", "lower": 0.9, "upper": 1.5}
CONFIGS = [
    {},
    {"upper": 1.0},
    {"weights": "sequence", "upper": 5.0},
    {"outside": "leave_out", "lower": 0.5, "upper": 5.0},
    {"outside": "leave_out", "weights": "sequence", "lower": 0.1},
    {"normalise": True},
    {"normalise": True, "weights": "sequence", "outside": "leave_out", "lower": 0.1},
    {"reject": GEOMETRIC, "weights": "none"},
    {"reject": {"ratio": "product", "lower": 0.2, "upper": 3.0}, "normalise": True},
]


@given(batches(), st.sampled_from(CONFIGS), st.data())
def test_weights_and_masks_of_every_token(batch, given_config, data):
    config = CorrectionConfig(**given_config)
    whole = correct(config, *batch)
    weights, kept, metrics = oracle(config, *batch)
    torch.testing.assert_close(
        whole.weights, torch.tensor(weights, dtype=torch.float64), rtol=1e-9, atol=1e-9
    )
    assert (whole.mask.tolist(), whole.metrics) == (kept, pytest.approx(metrics, abs=1e-9))
    assert not whole.weights.requires_grad
    deals = [[*rows] for rows in deal(data.draw, len(batch[0]))]

    def part(rows, reduce):
        return correct(config, *(x[rows] for x in batch), reduce)

    for rows, here in zip(deals, on_parts(part, deals), strict=True):
        torch.testing.assert_close(here.weights, whole.weights[rows], rtol=1e-9, atol=1e-9)
        assert here.mask.tolist() == whole.mask[rows].tolist()
        assert here.metrics == pytest.approx(whole.metrics, abs=1e-9)


def test_what_is_masked_may_be_anything():
    sampled = torch.tensor([[0.0, math.nan, -math.inf]])
    found = correct(CorrectionConfig(), sampled, torch.zeros(1, 3), torch.tensor([[1, 0, 0]]))
    assert (found.weights.tolist(), found.mask.tolist()) == ([[1.0, 0.0, 0.0]], [[1, 0, 0]])


@pytest.mark.parametrize("distance, exponent", [(-50.0, 20.0), (50.0, -20.0)])
def test_the_log_ratio_is_held_within_twenty(distance, exponent):
    zero = torch.zeros(1, 1, dtype=torch.float64)
    found = correct(CorrectionConfig(upper=1e9), zero + distance, zero, zero + 1)
    assert found.weights.item() == pytest.approx(math.exp(exponent), rel=1e-12)


def test_a_mean_weight_of_nearly_nothing_divides_none():
    """verl normalises by a mean above 1e-8 alone."""
    old, rollout = torch.full((2, 3), -30.0), torch.full((2, 3), -1.0)
    config = CorrectionConfig(weights="sequence", upper=5.0, normalise=True)
    found = correct(config, rollout, old, torch.ones(2, 3))
    assert found.weights.flatten().tolist() == pytest.approx([math.exp(-20)] * 6)
