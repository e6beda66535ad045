"""The optimal token baseline as sums over the responses that reach a place."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.algorithms.scored import Row, agrees, owners, rows, scored
from verl_hpc.algorithms.advantages.optimal_token_baseline import OptimalTokenBaseline


def oracle(rows, handle_zero_tail):
    def reward_to_go(row, place):
        return sum(row.rewards[t] for t in row.counted[place:])

    def weight(row, place):
        so_far = row.counted[: place + 1]
        return sum(1 - 2 * math.exp(row.log_probs[t]) + row.squares[t] for t in so_far)

    of_rows = []
    for row in rows:
        advantages = [0.0] * len(row.mask)
        mates = [r for r in rows if r.group == row.group and r.counted]
        for place, t in enumerate(row.counted):
            there = [r for r in mates if len(r.counted) > place]
            total = sum(weight(r, place) for r in there) + 1e-8
            baseline = sum(reward_to_go(r, place) * weight(r, place) for r in there) / total
            if len(mates) == 1 or (handle_zero_tail and len(there) == 1):
                baseline = 0.0
            advantages[t] = reward_to_go(row, place) - baseline
        of_rows.append(advantages)
    return of_rows


@given(rows(), owners, st.booleans())
def test_against_the_formula(rows, owners, handle_zero_tail):
    estimator = OptimalTokenBaseline(handle_zero_tail=handle_zero_tail)
    agrees(estimator, lambda given: oracle(given, handle_zero_tail), rows, owners)


def row(rewards, mask, p=0.5, squares=0.5):
    """A response whose tokens all have a weight of 0.5, if nothing else is said."""
    n = len(mask)
    return Row(0, sum(rewards), rewards, mask, [0.0] * n, 0.0, [math.log(p)] * n, [squares] * n)


def test_the_tail_has_no_baseline_unless_it_is_asked_for():
    """The default is that of verl's trainers, which do not say."""
    assert OptimalTokenBaseline().handle_zero_tail


def advantages(given, **settings):
    return OptimalTokenBaseline(**settings)(scored(given)).tolist()


LONGEST = [row([0, 0, 3.0], [1, 1, 1]), row([1.0, 0, 0], [1, 0, 0])]
WITH_GAP = [row([0, 0, 2.0], [1, 0, 1]), row([0, 1.0, 0], [1, 1, 0])]


@pytest.mark.parametrize(
    ("given", "zero", "expected"),
    [
        (LONGEST, False, [[1.0, 0.0, 0.0], [-1.0, 0.0, 0.0]]),
        (LONGEST, True, [[1.0, 3.0, 3.0], [-1.0, 0.0, 0.0]]),
        # Both end with their second token that counts: a gap does not part places.
        (WITH_GAP, True, [[0.5, 0.0, 0.5], [-0.5, -0.5, 0.0]]),
    ],
)
def test_the_tail_of_the_longest_response(given, zero, expected):
    rows = advantages(given, handle_zero_tail=zero)
    assert rows == [pytest.approx(row, abs=1e-6) for row in expected]


def test_responses_of_less_certain_tokens_weigh_more():
    sure, unsure = row([4.0], [1], 0.9, 0.82), row([0.0], [1])
    baseline = 4 * 0.02 / (0.02 + 0.5)
    found = advantages([sure, unsure])
    assert [a for (a,) in found] == pytest.approx([4 - baseline, -baseline], abs=1e-5)


def test_the_only_response_with_a_token_has_no_baseline():
    assert advantages([row([2.0, 0], [1, 1]), row([1.0, 0], [0, 0])]) == [[2.0, 0.0], [0.0, 0.0]]


def test_no_token_counts_at_all():
    assert advantages([row([2.0], [0]), row([1.0], [0])]) == [[0.0], [0.0]]
