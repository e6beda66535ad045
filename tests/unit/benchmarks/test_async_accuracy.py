"""Seconds of a step, and overlap, from intervals."""

import pytest

from benchmarks.async_accuracy import times
from verl_hpc.metrics.timeline import Interval


def interval(rank, step, operator, start, stop):
    return Interval(rank, step, operator, "somewhere", start, stop)


def test_overlap_is_where_one_generates_and_one_trains():
    rows = [
        (0, 1, "update_actor", 0.0, 4.0),
        (0, 1, "wait", 4.0, 6.0),
        (0, 1, "testing", 6.0, 60.0),
        (0, 2, "old_log_probs", 60.0, 61.0),
        (0, 2, "update_actor", 61.0, 64.0),
        (1, 1, "update_actor", 1.0, 4.5),
        (2, 2, "rollout", 3.0, 5.5),
        (3, 2, "rollout", 2.0, 6.0),
        (3, 3, "rollout", 63.5, 65.0),
    ]
    # Steps of 6 s and 4 s.
    expected = {"step_seconds": pytest.approx(5.0), "overlap": pytest.approx((2.5 + 0.5) / 10)}
    assert times([interval(*row) for row in rows]) == expected


def test_ranks_in_turn_do_not_overlap():
    turns = [interval(2, 1, "rollout", 0.0, 1.0), interval(0, 1, "update_actor", 1.0, 2.0)]
    assert times(turns) == {"step_seconds": 1.0, "overlap": 0.0}
