"""Group-relative advantages, group by group."""

import statistics

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.unit.algorithms.scored import agrees, mates, of_responses, owners, rows, simple
from verl_hpc.algorithms.advantages.grpo import Grpo


def oracle(rows, std, epsilon):
    found = []
    for row in rows:
        others = mates(rows, row)
        mean = statistics.fmean(others) if len(others) > 1 else 0.0
        compared = {"group": others, "batch": [r.score for r in rows], "none": []}[std]
        by = statistics.stdev(compared) if len(compared) > 1 else 1.0
        found.append((row.score - mean) / (by + epsilon if std != "none" else 1.0))
    return of_responses(rows, found)


@given(rows(), owners, st.sampled_from(["group", "batch", "none"]), st.sampled_from([1e-6, 1e-4]))
def test_against_the_formula(rows, owners, std, epsilon):
    assume(std != "none" or epsilon == 1e-6)
    # A deviation of 0 but for rounding says nothing.
    assume(len(rows) == 1 or len({row.score for row in rows}) > 1 or std != "batch")
    agrees(Grpo(std=std, epsilon=epsilon), lambda r: oracle(r, std, epsilon), rows, owners)


def test_two_groups_by_hand():
    batch = simple([1.0, 5.0, 3.0, 5.0], [1, 0, 1, 0])
    std = 2**0.5 + 1e-6
    assert Grpo()(batch).tolist() == pytest.approx([-1 / std, 0, 1 / std, 0], abs=1e-15)
    assert Grpo(std="none")(batch).tolist() == [-1, 0, 1, 0]
    std = (11 / 3) ** 0.5 + 1e-6
    assert Grpo(std="batch")(batch).tolist() == pytest.approx([-1 / std, 0, 1 / std, 0])


def test_a_group_of_one_keeps_its_score():
    batch = simple([2.0, 3.0], [0, 1])
    assert Grpo()(batch).tolist() == pytest.approx([2 / (1 + 1e-6), 3 / (1 + 1e-6)])
    assert Grpo(std="none")(batch).tolist() == [2, 3]
    assert Grpo(std="batch")(simple([2.0], [0])).tolist() == [pytest.approx(2 / (1 + 1e-6))]


@pytest.mark.parametrize("score", [0.0, 1.0, 0.1, -7.3])
@pytest.mark.parametrize("std", ["group", "batch", "none"])
def test_equal_scores_have_no_advantage(score, std):
    assert Grpo(std=std)(simple([score] * 7, [0] * 7)).abs().max().item() < 1e-8
