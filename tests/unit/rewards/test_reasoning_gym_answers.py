"""Every answer of a reasoning-gym task has the score that the task gives it."""

import pytest

from tests.unit.rewards.answers.reasoning_gym import ENTRIES, ROWS
from verl_hpc.rewards.functions.reasoning_gym import reasoning_gym as compute_score


def score(response, truth, task, extra):
    return compute_score(f"reasoning_gym/{task}", response, truth, extra, timeout_s=60.0)


def test_every_answer_has_its_score():
    found = [(row, score(row[0], row[1], *row[3:])) for row in ROWS]
    assert not [(row, got) for row, got in found if got != pytest.approx(row[2], abs=1e-12)]


def test_the_answer_of_every_entry_is_right():
    answers = [entry for entry in ENTRIES.values() if entry[1] is not None]
    assert all(score(truth, truth, task, {"metadata": data}) == 1 for task, truth, data in answers)
