"""Every response of the tables in `answers` has the score that it deserves."""

import pytest

from tests.unit.rewards.answers import accuracy, exact_match, gsm8k, math, multiple_choice
from tests.unit.rewards.answers import format as forms
from verl_hpc.config.reward_options import FormatOptions, MultipleChoiceOptions
from verl_hpc.rewards import format_reward
from verl_hpc.rewards.accuracy import compute_score as same_or_formula
from verl_hpc.rewards.exact_match import compute_score as same
from verl_hpc.rewards.gsm8k import compute_score as number
from verl_hpc.rewards.math_reward import compute_score as formula
from verl_hpc.rewards.multiple_choice import make

letter = make(MultipleChoiceOptions())
TABLES = {
    "accuracy": (accuracy.ROWS, lambda text, truth: same_or_formula("", text, truth)),
    "exact_match": (exact_match.ROWS, lambda text, truth: same("", text, truth)),
    "format": (
        forms.ROWS,
        lambda text, truth, options: format_reward.make(FormatOptions(**options))("", text, truth),
    ),
    "gsm8k": (gsm8k.ROWS, lambda text, truth, method: number("", text, truth, method=method)),
    "math": (math.ROWS, lambda text, truth: formula("", text, truth, timeout_s=60.0)),
    "multiple_choice": (
        multiple_choice.ROWS,
        lambda text, truth, choices: letter("", text, truth, row={"choices": choices})["score"],
    ),
}
"""The rows of a scorer, and what calls it with a response, a truth and what a row has more."""


@pytest.mark.parametrize("table", TABLES)
def test_every_answer_has_its_score(table):
    rows, score = TABLES[table]
    wrong = [row for row in rows if score(*row[:2], *row[4:]) != row[2]]
    assert not wrong
