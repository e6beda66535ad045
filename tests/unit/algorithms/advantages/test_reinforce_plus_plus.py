"""REINFORCE++, and its form with a baseline, token by token."""

import statistics

from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.scored import agrees, mates, of_responses, owners, rows, whitened
from verl_hpc.algorithms.advantages.reinforce_plus_plus import ReinforcePlusPlus
from verl_hpc.algorithms.advantages.reinforce_plus_plus_baseline import ReinforcePlusPlusBaseline


def returns(row, gamma):
    """Returns of the tokens that count, as if there were no others."""
    found = [0.0] * len(row.mask)
    for i, t in enumerate(row.counted):
        found[t] = sum(gamma**k * row.rewards[s] for k, s in enumerate(row.counted[i:]))
    return found


@given(rows(), owners, st.sampled_from([0.0, 0.5, 0.95, 1.0]))
def test_whitened_returns(rows, owners, gamma):
    def oracle(rows):
        return whitened([returns(row, gamma) for row in rows], rows)

    agrees(ReinforcePlusPlus(gamma=gamma), oracle, rows, owners)


def baseline(rows):
    found = []
    for row in rows:
        others = mates(rows, row)
        found.append(row.score - (statistics.fmean(others) if len(others) > 1 else 0.0))
    return whitened(of_responses(rows, found), rows)


@given(rows(), owners)
def test_whitened_differences_from_the_mean_of_the_group(rows, owners):
    agrees(ReinforcePlusPlusBaseline(), baseline, rows, owners)
