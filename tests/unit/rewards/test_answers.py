"""Every response of the tables in `answers` has the score that it deserves."""

from fractions import Fraction

import pytest

from tests.unit.rewards.answers import accuracy, exact_match, gsm8k, math, multiple_choice
from tests.unit.rewards.answers import format as forms
from verl_hpc.rewards.functions import accuracy_reward
from verl_hpc.rewards.functions import format as form
from verl_hpc.rewards.functions.exact_match import exact_match as same
from verl_hpc.rewards.functions.format import Options as FormatOptions
from verl_hpc.rewards.functions.gsm8k import compute_score as score_number
from verl_hpc.rewards.functions.math import compute_score as formula
from verl_hpc.rewards.functions.multiple_choice import Options as MultipleChoiceOptions
from verl_hpc.rewards.functions.multiple_choice import make

choose = make(MultipleChoiceOptions())
TABLES = {
    "accuracy": (accuracy.ROWS, accuracy_reward.accuracy_reward),
    "exact_match": (exact_match.ROWS, same),
    "format": (forms.ROWS, lambda text, _, options: form.make(FormatOptions(**options))(text)),
    "math": (math.ROWS, lambda text, truth: formula(text, truth, timeout_s=60.0)),
}
"""The rows of a scorer, and what calls it with a response, a truth and what a row has more."""


@pytest.mark.parametrize("table", TABLES)
def test_every_answer_has_its_score(table):
    rows, score = TABLES[table]
    wrong = [row for row in rows if score(*row[:2], *row[3:]) != row[2]]
    assert not wrong


def test_a_letter_is_right_and_no_other():
    for response, letter, choices in multiple_choice.ROWS:
        row = {"choices": choices}
        right = [x for x in choices if choose(response, x, row=row)["score"] == 1.0]
        assert right == ([letter] if letter else []), response


def test_a_number_is_right_and_no_other():
    misread = map(Fraction, ("31415", "31415926", "100099", "1234.5", "72.5", "4/9", "-5"))
    numbers = {Fraction(truth) for _, truth, *_ in gsm8k.ROWS if truth} | {*misread, *range(300)}
    for response, truth, method in gsm8k.ROWS:
        scores = {n: score_number(response, str(n), method=method) for n in numbers}
        right = [Fraction(truth)] if truth else []
        assert [n for n, score in scores.items() if score == 1.0] == right, response
        assert truth is None or score_number(response, truth, method=method) == 1.0
