"""Every response of the tables in `answers` has the score that it deserves."""

import pytest

from tests.unit.rewards.answers import multiple_choice
from verl_hpc.config.reward_options import MultipleChoiceOptions
from verl_hpc.rewards.multiple_choice import make

TABLES = {"multiple_choice": multiple_choice.ROWS}
LETTER = make(MultipleChoiceOptions())


def score(table, response, truth, *choices):
    if table == "multiple_choice":
        return LETTER("", response, truth, None, {"choices": choices[0]})
    raise AssertionError(table)


@pytest.mark.parametrize("table", TABLES)
def test_every_answer_has_its_score(table):
    rows = TABLES[table]
    wrong = [row[:3] for row in rows if score(table, row[0], row[1], *row[4:]) != row[2]]
    assert not wrong


@pytest.mark.parametrize("table", TABLES)
def test_a_table_has_many_wrong_answers_that_look_right_and_names_where_half_are_from(table):
    rows = TABLES[table]
    wrong = [row for row in rows if row[2] == 0]
    assert len({row[:2] for row in rows}) == len(rows) >= 60
    assert len(wrong) >= len(rows) / 3
    assert sum(bool(row[3]) for row in wrong) >= len(wrong) / 2
