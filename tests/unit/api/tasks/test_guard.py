"""What a guard takes for a fall."""

import math

import pytest

from verl_hpc.api.tasks.guards import MetricDrop, Rollback, SafetyGuard, log_alert
from verl_hpc.errors import ConfigError


def looks(guard, values, name="m"):
    return [guard.look(step, {name: value}) for step, value in enumerate(values, 1)]


def test_it_is_measured_against_the_best_so_far():
    found = looks(SafetyGuard(["m"], 0.5, 10), [0.0, 1.0, 0.6, 0.5, 0.4])
    assert found == [None] * 4 + [MetricDrop("m", 0.4, 1.0, 5)]


def test_lower_may_be_better():
    guard = SafetyGuard({"m": "min"}, 0.5, 10)
    assert looks(guard, [2.0, 1.0, 1.5, 1.75])[-1] == MetricDrop("m", 1.75, 1.0, 4)


def test_a_baseline_does_not_move():
    guard = SafetyGuard("m", 0.5, 10, baseline={"m": 0.0})
    assert looks(guard, [5.0, 0.0, -0.5, -0.75])[-1] == MetricDrop("m", -0.75, 0.0, 4)
    assert looks(SafetyGuard("m", 0.5, 10, baseline={"m": 0.0}), [-1.0]) == [
        MetricDrop("m", -1.0, 0.0, 1)
    ]


def test_a_window_averages():
    assert looks(SafetyGuard("m", 0.5, 10, window=2), [1, 1, 0, 0.5, 0.25])[-1] == MetricDrop(
        "m", 0.375, 1.0, 5
    )


def test_what_is_not_finite_falls_at_once():
    found = looks(SafetyGuard("m", 0.5, 10, window=5), [1.0, math.nan])[-1]
    assert found.metric == "m" and math.isnan(found.value) and found.step == 2


def test_it_goes_on_from_its_state():
    guard, again = (SafetyGuard("a/m", 0.5, 10, window=3) for _ in range(2))
    looks(guard, [1.0, 2.0, 3.0, 0.0], "a/m")
    again.load_state(guard.state())
    assert again.state() == guard.state() != {}
    later = {"a/m": 1.0}
    assert again.look(5, later) == guard.look(5, later) == MetricDrop("a/m", 4 / 3, 2.0, 5)
    SafetyGuard("b", 0.5, 10).load_state(guard.state())


def test_the_default_alert_is_a_line_of_the_log(caplog):
    log_alert(Rollback(MetricDrop("m", 0.25, 1.0, 12), 8, 1, 0.5))
    assert "m = 0.25 at step 12 is too far from 1; went back to the checkpoint of step 8" in (
        caplog.text
    )


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"monitor_metrics": []}, "monitor_metrics = .*at least 1 item"),
        ({"monitor_metrics": {"m": "up"}}, "monitor_metrics.*'max' or 'min'"),
        ({"threshold_delta": -1.0}, "threshold_delta = -1.0; .*greater than or equal to 0"),
        ({"rollback_steps": 0}, "rollback_steps = 0; .*greater than or equal to 1"),
        ({"rollback_steps": 1.5}, "rollback_steps = 1.5; Input should be a valid integer"),
        ({"threshold_delta": "5"}, "threshold_delta = '5'; Input should be a valid number"),
        ({"window": 0}, "window = 0"),
        ({"lr_factor": 0}, "lr_factor = 0"),
        ({"max_rollbacks": 0}, "max_rollbacks = 0"),
        ({"alert": "mail"}, "alert = 'mail'; Input should be callable"),
        ({"baseline": {"m": math.nan}}, r"baseline\['m'\] = "),
        ({"baseline": {"n": 1.0}}, r"baseline\['n'\]: not one of monitor_metrics"),
    ],
)
def test_values_that_are_not_allowed_are_named(changes, words):
    given = {"monitor_metrics": ["m"], "threshold_delta": 0.5, "rollback_steps": 10}
    with pytest.raises(ConfigError, match=words):
        SafetyGuard(**given | changes)
