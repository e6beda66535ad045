"""Estimates of how far two policies are apart, in plain loops."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.batches import deal, on_parts
from tests.unit.algorithms.test_correction import batches, clamped
from verl_hpc.algorithms.off_policy import off_policy


def oracle(sampled, old, mask):
    k1, k3, ratios, squares, ppl = [], [], [], [], []
    for s_row, o_row, m_row in zip(sampled.tolist(), old.tolist(), mask.tolist(), strict=True):
        d = [o - s for s, o, m in zip(s_row, o_row, m_row, strict=True) if m]
        k1 += [-x for x in d]
        k3 += [math.exp(x) - x - 1 for x in d]
        ratios += [math.exp(clamped(x)) for x in d]
        if d:
            squares.append(math.exp(2 * clamped(sum(d))))
            ppl.append(math.exp(clamped(-sum(d) / len(d))))
    n = max(len(k1), 1)
    weighed = sum(r**2 for r in ratios)
    return {
        "kl": sum(k1) / n,
        "k3_kl": sum(k3) / n,
        "chi2_token": weighed / n - 1,
        "chi2_seq": sum(squares) / max(len(squares), 1) - 1,
        "ppl_ratio": sum(ppl) / max(len(ppl), 1),
        "eff_sample_size": sum(ratios) ** 2 / (n * weighed) if ratios else 1.0,
    }


@given(batches(), st.data())
def test_against_loops(batch, data):
    expected = pytest.approx(oracle(*batch), rel=1e-9, abs=1e-9)
    assert off_policy(*batch) == expected
    deals = [[*rows] for rows in deal(data.draw, len(batch[0]))]
    for found in on_parts(lambda rows, r: off_policy(*(x[rows] for x in batch), r), deals):
        assert found == expected


def test_engines_that_agree():
    same = torch.tensor([[-1.0, -2.0, math.nan]])
    found = off_policy(same, same, torch.tensor([[1, 1, 0]]))
    assert found == {
        "kl": 0, "k3_kl": 0, "chi2_token": 0, "chi2_seq": 0, "ppl_ratio": 1, "eff_sample_size": 1,
    }  # fmt: skip
