"""Shares of tasks and the task of each step."""

from collections import Counter
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.config.trees import parse
from verl_hpc.checkpoint.run_state import TaskState
from verl_hpc.trainer.mix import choose, floored, shares, with_score


def config(mix, **weights):
    return parse(mix=mix, tasks={name: {"weight": weight} for name, weight in weights.items()})


def states(*scores, decay=0.5):
    """States of tasks a, b, ... that scored so, one step after another."""
    made = {}
    for name, values in zip("abc", scores, strict=False):
        state = TaskState()
        for value in values:
            state = with_score(state, value, decay)
        made[name] = state
    return made


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5).filter(any), st.floats(0, 1))
def test_floored_shares_sum_to_one_and_keep_the_floor_and_their_order(weights, part):
    named, least = dict(enumerate(weights)), part / len(weights)
    floor = floored(named, least)
    assert sum(floor.values()) == pytest.approx(1)
    assert min(floor.values()) >= least - 1e-12
    ordered = sorted(named, key=named.__getitem__)
    assert all(floor[low] <= floor[high] + 1e-12 for low, high in pairwise(ordered))


@pytest.mark.parametrize(
    ("mix", "scores", "expected"),
    [
        ({}, [[1, 1], [0, 0]], {"a": 0.8, "b": 0.2}),
        ({"by": "success", "min_weight": 0.1}, [[1, 1], [0, 0]], {"a": 0.1, "b": 0.9}),
        ({"by": "success"}, [[0.5, 0.5], [0, 0]], {"a": 2 / 3, "b": 1 / 3}),
        ({"by": "success"}, [[1, 1], [1, 1]], {"a": 0.8, "b": 0.2}),
        ({"by": "success"}, [[1, 1], [0]], {"a": 0.8, "b": 0.2}),
        ({"by": "progress", "decay": 0.5}, [[0, 1], [0, 0.5]], {"a": 8 / 9, "b": 1 / 9}),
        ({"by": "progress", "min_weight": 0.2}, [[1, 0], [1, 1]], {"a": 0.8, "b": 0.2}),
    ],
)
def test_shares_follow_scores_once_all_tasks_have_two(mix, scores, expected):
    found = shares(config(mix, a=0.8, b=0.2), states(*scores), 7)
    assert found == pytest.approx(expected)


def test_the_tasks_of_steps_have_their_shares_and_depend_on_the_seed_alone():
    run = config({"min_weight": 0.1}, a=0.6, b=0.4, c=0.0)
    drawn = [choose(run, states([], [], []), step) for step in range(1, 2001)]
    assert drawn == [choose(run, states([], [], []), step) for step in range(1, 2001)]
    counts = Counter(drawn)
    assert counts["c"] / 2000 == pytest.approx(0.1, abs=0.03)
    assert counts["a"] / 2000 == pytest.approx(0.54, abs=0.04)
    other = run.model_copy(update={"seed": 1})
    assert drawn != [choose(other, states([], [], []), step) for step in range(1, 2001)]
