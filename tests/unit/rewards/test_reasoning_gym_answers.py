"""Every answer of a reasoning-gym task has the score that the task gives it."""

import pytest

from tests.unit.rewards.answers.reasoning_gym import ENTRIES, ROWS
from verl_hpc.rewards.reasoning_gym_reward import compute_score


def score(response, truth, task, extra):
    return compute_score(f"reasoning_gym/{task}", response, truth, extra, timeout_s=60.0)


def test_every_answer_has_its_score():
    found = [(row, score(row[0], row[1], *row[4:])) for row in ROWS]
    assert not [(row, got) for row, got in found if got != pytest.approx(row[2], abs=1e-12)]


def test_the_answer_of_every_entry_is_right():
    answers = [entry for entry in ENTRIES.values() if entry[1] is not None]
    assert all(score(truth, truth, task, {"metadata": data}) == 1 for task, truth, data in answers)


def test_the_table_has_many_wrong_answers_that_look_right_and_names_where_half_are_from():
    wrong = [row for row in ROWS if row[2] < 1]
    assert len({(*row[:2], *map(str, row[4:])) for row in ROWS}) == len(ROWS) >= 60
    assert len(wrong) >= len(ROWS) / 3
    assert sum(bool(row[3]) for row in wrong) >= len(wrong) / 2
