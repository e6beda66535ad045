"""What curves and bars are made of."""

import pytest

from verl_hpc.metrics.names import Chart
from verl_hpc.metrics.series import (
    bins,
    curves,
    fold,
    mean_seconds,
    operator_seconds,
    points,
    smooth,
    thin,
)


def test_points_leave_out_absent_and_null_values():
    rows = [{"step": 1, "a": 1.0}, {"step": 2}, {"step": 3, "a": None}, {"step": 4, "a": 0.0}]
    assert points(rows, "a") == [(1, 1.0), (4, 0.0)]


def test_a_curve_equal_to_another_is_drawn_once():
    chart = Chart("Reward", {"score": "score", "reward": "after KL penalty"})
    same = [{"step": 1, "score": 1.0, "reward": 1.0}]
    other = [{"step": 1, "score": 1.0, "reward": 0.9}]
    assert curves(chart, same) == {"score": [(1, 1.0)]}
    assert curves(chart, other) == {"score": [(1, 1.0)], "after KL penalty": [(1, 0.9)]}
    assert curves(chart, [{"step": 1}]) == {}


def test_an_average_starts_at_the_first_value_and_weighs_the_newest_most():
    averaged = smooth([(1, 4.0), (2, 4.0), (3, 0.0)], weight=0.5)
    assert averaged == [(1, 4.0), (2, 4.0), (3, pytest.approx(4 * 3 / 7))]


def test_thinning_keeps_peaks_ends_and_order():
    curve = [(step, float(step)) for step in range(1001)]
    curve[617] = (617, 9000.0)
    curve[618] = (618, -9000.0)
    thinned = thin(curve, 100)
    assert len(thinned) <= 100
    assert {curve[0], curve[617], curve[618], curve[-1]} < set(thinned)
    assert thinned == sorted(thinned)
    assert thin(curve[:100], 100) == curve[:100]


def test_what_no_operator_took_is_other():
    """But for a sliver of untimed seconds; operators that overlap leave none."""
    for seconds, expected in (
        ({"step": 10.0, "rollout": 6.0, "rollout/reshard": 2.0}, {"rollout": 6.0, "other": 4.0}),
        ({"step": 10.0, "rollout": 9.95, "reward": None}, {"rollout": 9.95}),
        ({"step": 5.0, "rollout": 4.0, "update": 4.0}, {"rollout": 4.0, "update": 4.0}),
    ):
        values = {f"timing_s/{name}": value for name, value in seconds.items()}
        assert operator_seconds(values | {"actor/lr": 1.0}) == expected


def test_a_mean_step_counts_steps_without_the_operator():
    rows = [{"timing_s/rollout": 4.0}, {"timing_s/rollout": 4.0, "timing_s/evaluation": 10.0}]
    seconds = mean_seconds(rows)
    assert seconds == {"evaluation": 5.0, "rollout": 4.0}
    assert list(seconds) == ["evaluation", "rollout"]
    assert mean_seconds([]) == {}


def test_fold_sums_what_is_not_named():
    seconds = {"a": 3.0, "b": 2.0, "other": 1.0}
    assert fold(seconds, ["a", "c"]) == {"a": 3.0, "other": 3.0}
    assert fold({"a": 3.0}, ["a"]) == {"a": 3.0}


def test_bins():
    for sizes in ([], [1], [1, 1, 1, 1], [2, 2, 1]):
        rows = [{"step": step} for step in range(sum(sizes))]
        cut = bins(rows, 4)
        assert [len(part) for part in cut] == sizes
        assert [row for part in cut for row in part] == rows
