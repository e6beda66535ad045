"""Group-relative advantages, group by group."""

import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from verl_hpc.algorithms.grpo import grpo


def oracle(scores, groups, by_std):
    found = []
    for score, group in zip(scores, groups, strict=True):
        mates = [s for s, g in zip(scores, groups, strict=True) if g == group]
        mean, std = 0.0, 1.0
        if len(mates) > 1:
            mean, std = statistics.fmean(mates), statistics.stdev(mates)
        found.append((score - mean) / (std + 1e-6) if by_std else score - mean)
    return found


scored = st.lists(
    st.tuples(st.floats(-10, 10).map(lambda x: round(x, 3)), st.sampled_from([0, 7, -3, 2**40])),
    min_size=1,
    max_size=12,
)


@settings(deadline=None)
@given(scored, st.booleans())
def test_against_the_formula_in_any_order_of_groups(rows, by_std):
    scores, groups = map(list, zip(*rows, strict=True))
    found = grpo(torch.tensor(scores, dtype=torch.float64), torch.tensor(groups), by_std)
    assert found.dtype == torch.float64
    np.testing.assert_allclose(found.numpy(), oracle(scores, groups, by_std), rtol=1e-9, atol=1e-7)


def test_two_groups_by_hand():
    scores = torch.tensor([1.0, 5.0, 3.0, 5.0], dtype=torch.float64)
    groups = torch.tensor([4, 2, 4, 2])
    std = 2**0.5 + 1e-6
    assert grpo(scores, groups).tolist() == pytest.approx([-1 / std, 0, 1 / std, 0], abs=1e-15)
    assert grpo(scores, groups, normalise_by_std=False).tolist() == [-1, 0, 1, 0]


def test_a_group_of_one_keeps_its_score():
    scores = torch.tensor([2.0, 3.0], dtype=torch.float64)
    groups = torch.tensor([0, 1])
    assert grpo(scores, groups).tolist() == pytest.approx([2 / (1 + 1e-6), 3 / (1 + 1e-6)])
    assert grpo(scores, groups, normalise_by_std=False).tolist() == [2, 3]


@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, -7.3])
def test_equal_scores_have_no_advantage(score):
    scores = torch.full((7,), score, dtype=torch.float64)
    for by_std in (True, False):
        found = grpo(scores, torch.zeros(7, dtype=torch.int64), by_std)
        assert found.abs().max().item() < 1e-8


def test_all_responses_count_the_same():
    """Whatever the groups' order in the batch, a response's advantage is its own."""
    generator = torch.Generator().manual_seed(0)
    scores = torch.rand(24, generator=generator, dtype=torch.float64)
    groups = torch.arange(6).repeat(4)
    order = torch.randperm(24, generator=generator)
    torch.testing.assert_close(
        grpo(scores[order], groups[order]), grpo(scores, groups)[order], rtol=1e-12, atol=1e-12
    )


def test_narrow_scores_stay_narrow():
    assert grpo(torch.ones(2), torch.zeros(2, dtype=torch.int64)).dtype == torch.float32
