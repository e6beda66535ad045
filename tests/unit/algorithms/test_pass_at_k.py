"""pass@k against all subsets, counted."""

from fractions import Fraction
from itertools import combinations

import pytest

from verl_hpc.algorithms.pass_at_k import ks_up_to, pass_at_k


@pytest.mark.parametrize("num_samples", [1, 2, 5, 8])
def test_it_is_the_share_of_subsets_with_a_right_answer(num_samples):
    for num_correct in range(num_samples + 1):
        right = [i < num_correct for i in range(num_samples)]
        for k in range(1, num_samples + 1):
            subsets = list(combinations(right, k))
            share = Fraction(sum(map(any, subsets)), len(subsets))
            assert pass_at_k(num_samples, num_correct, k) == pytest.approx(float(share), abs=1e-12)


def test_it_stays_finite_where_binomials_are_astronomical():
    assert pass_at_k(10_000, 1, 5_000) == pytest.approx(0.5, abs=1e-9)
    assert pass_at_k(10_000, 5_000, 5_000) == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("num_samples", "ks"), [(1, [1]), (2, [1, 2]), (6, [1, 2, 4, 6]), (8, [1, 2, 4, 8])]
)
def test_which_k_are_told(num_samples, ks):
    assert ks_up_to(num_samples) == ks
