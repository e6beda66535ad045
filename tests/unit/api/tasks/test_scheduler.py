"""Task weights: who gives, who gets, the floor, and going on after a restart."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.api.tasks.scheduler import DynamicTaskWeightScheduler
from verl_hpc.errors import CheckpointError, ConfigError


def scheduler(**changes):
    given = {"initial_weights": {"a": 2, "b": 1, "c": 1}, "patience": 2, "min_weight": 0.1}
    return DynamicTaskWeightScheduler(**given | changes)


def evaluate(scheduler, metrics):
    scheduler.observe(metrics)
    return scheduler.update()


def rewards(**values):
    return {f"task/{name}/reward": value for name, value in values.items()}


def test_weight_goes_from_what_has_stopped_to_what_improves():
    weighing = scheduler()
    assert weighing.weights == {"a": 0.5, "b": 0.25, "c": 0.25}
    for step in range(2):  # the first value is a best, and one evaluation is not enough
        assert evaluate(weighing, rewards(a=1, b=step, c=step))["a"] == 0.5
    weights = evaluate(weighing, rewards(a=1, b=2, c=2))
    assert weights == pytest.approx({"a": 0.3, "b": 0.35, "c": 0.35})
    for step in range(3, 60):
        weights = evaluate(weighing, rewards(a=0.5, b=step, c=step))
    assert weights == pytest.approx({"a": 0.1, "b": 0.45, "c": 0.45})
    assert weights["a"] >= 0.1
    weights = evaluate(weighing, rewards(a=2, b=60, c=60))  # it improves again, and gets its part
    for _ in range(2):
        weights = evaluate(weighing, rewards(a=3 + _, b=0, c=70 + _))
    assert weights["b"] < 0.45 and weights["a"] > 0.1


def test_nothing_moves_where_all_have_stopped():
    found = scheduler()
    for _ in range(9):
        evaluate(found, rewards(a=1, b=1, c=1))
    assert found.weights == {"a": 0.5, "b": 0.25, "c": 0.25}


def test_a_task_that_was_not_evaluated_is_judged_by_what_was_known():
    found = scheduler(patience=1)
    evaluate(found, rewards(a=1, b=1, c=1))
    for _ in range(5):
        evaluate(found, rewards(b=_ + 2, c=_ + 2))
    assert found.weights["a"] == 0.5
    evaluate(found, rewards(a=math.nan, b=9, c=9))
    assert found.weights["a"] == 0.5


@given(
    st.lists(
        st.fixed_dictionaries({name: st.floats(-10, 10) for name in "abc"}), min_size=1, max_size=40
    )
)
def test_weights_sum_to_one_above_the_floor(evaluations):
    found = scheduler(patience=1, min_weight=0.2)
    for values in evaluations:
        weights = evaluate(found, rewards(**values))
        assert math.isclose(math.fsum(weights.values()), 1, abs_tol=1e-12)
        assert min(weights.values()) >= 0.2 - 1e-12


def test_it_goes_on_from_its_state():
    one, other = scheduler(), scheduler()
    for step in range(4):
        evaluate(one, rewards(a=1, b=step, c=-step))
    other.load_state(one.state())
    assert other.weights == one.weights != scheduler().weights
    assert evaluate(other, rewards(a=1, b=9, c=9)) == evaluate(one, rewards(a=1, b=9, c=9))
    with pytest.raises(CheckpointError, match="of the tasks a, b, c, and this one is of d"):
        scheduler(initial_weights={"d": 1}).load_state(one.state())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"initial_weights": {}}, "initial_weights = {}; .*at least 1 item"),
        ({"initial_weights": {"a": 0.0}}, r"initial_weights\['a'\] = .*greater than 0"),
        ({"patience": 0}, "patience = 0; .*greater than or equal to 1"),
        ({"min_weight": 0.4}, "gives b 0.25 .* lower min_weight to at most 0.333"),
        ({"min_weight": 0.3}, "gives b 0.25 of the sum, below min_weight = 0.3"),
        ({"min_delta": -1.0}, "min_delta = -1.0; .*greater than or equal to 0"),
        ({"min_delta": float("nan")}, "min_delta = nan; "),
        ({"patience": 1.5}, "patience = 1.5; Input should be a valid integer"),
        ({"rate": 0.0}, "rate = 0.0; .*greater than 0"),
    ],
)
def test_values_that_are_not_allowed_are_named(changes, words):
    with pytest.raises(ConfigError, match=words):
        scheduler(**changes)


def test_a_metric_that_no_task_has_names_its_neighbours():
    with pytest.raises(ConfigError, match=r"'rewards': a has no such metric; did you mean reward"):
        scheduler(metric_key="rewards").observe(rewards(a=1))
