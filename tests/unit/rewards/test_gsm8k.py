"""The number a response ends with."""

import json
import math
import re

import pytest

from verl_hpc.errors import RewardError
from verl_hpc.rewards.functions.gsm8k import compute_score


def score(response, truth="72", **options) -> float:
    return compute_score(response, truth, **options)


def verl(response: str, truth: str, method: str) -> float:
    """verl's rule: the last match in the last 300 characters, equal to the truth as a string."""
    if method == "strict":
        numbers = re.findall(r"#### (-?[0-9.,]+)", response[-300:])
        return float(bool(numbers) and numbers[-1].replace(",", "") == truth)
    numbers = [n for n in re.findall(r"-?[0-9.,]+", response[-300:]) if n != "."]
    return float(numbers[-1:] == [truth])


@pytest.mark.parametrize(
    ("response", "truth", "strict", "flexible"),
    [
        ("48 + 24 = 72\n#### 72", "72", 1, 1),
        ("#### 71", "72", 0, 0),
        ("The answer is 72", "72", 0, 1),
        ("#### -3", "-3", 1, 1),
        ("#### 0.5", "0.5", 1, 1),
        ("#### 72 clips", "72", 1, 1),
        ("#### 71\n#### 72", "72", 1, 1),
        ("#### 72\n#### 71", "72", 0, 0),
        ("#### 72 of 96", "72", 1, 0),
        ("####72", "72", 0, 1),
        ("10-5", "5", 0, 0),
        ("#### seventy-two", "72", 0, 0),
        ("so 72 it is .", "72", 0, 1),
        ("no number", "72", 0, 0),
        ("", "72", 0, 0),
    ],
)
def test_as_verl(response, truth, strict, flexible):
    for method, right in (("strict", strict), ("flexible", flexible)):
        assert score(response, truth, method=method) == verl(response, truth, method) == right


@pytest.mark.parametrize("method", ["strict", "flexible"])
@pytest.mark.parametrize("written", ["1200.", "1200.0", "$1,200.00", "01200"])
def test_numbers_are_compared_as_numbers_where_verl_compares_strings(written, method):
    response = f"so it is #### {written}"
    assert score(response, "1200", method=method) == 1.0
    assert verl(response, "1200", method) == 0.0


@pytest.mark.parametrize("written", ["$-72", "-$72", "-72"])
def test_a_dollar_sign_may_stand_before_or_after_the_minus(written):
    assert score(f"#### {written}", "-72") == score(written, "-72", method="flexible") == 1.0


@pytest.mark.parametrize("truth", ["1200", "1,200", "$1,200", 1200, 1200.0, " 1200 "])
def test_the_truth_may_be_written_in_many_ways(truth):
    assert score("#### 1200", truth) == 1.0


@pytest.mark.parametrize("truth", ["1/2", 0.5, "0.50", "2/4", ".5"])
def test_numbers_are_exact_rationals(truth):
    assert score("#### 1/2", truth) == score("#### 0.5", truth) == 1.0
    assert score("#### 0.5000000000000001", truth) == 0.0


def test_a_number_that_the_tail_begins_with_is_not_cut():
    assert score("It costs 12345" + "." * 298, "12345", method="flexible") == 0.0
    assert score("It costs 12345" + "." * 290, "12345", method="flexible") == 1.0


def test_scores_are_options():
    assert score("#### 71", format_score=0.1) == 0.1
    assert score("no number", format_score=0.1) == 0.0
    assert score("#### 72", score=2.0) == 2.0


@pytest.mark.parametrize("truth", [None, "", "seventy-two", "7,2", "nan", math.inf, True, "1/0"])
def test_a_truth_that_is_no_number_is_an_error(truth):
    with pytest.raises(RewardError, match="is not a number"):
        score("#### 72", truth)


def test_an_unknown_method_names_the_known():
    with pytest.raises(RewardError, match="method = 'lax'; it must be one of strict, flexible"):
        score("#### 72", method="lax")


def test_every_answer_of_gsm8k_scores_against_itself_and_not_against_another(gsm8k_dir):
    answers = [json.loads(line)["answer"] for line in (gsm8k_dir / "test.jsonl").open()]
    truths = [answer.split("#### ")[1] for answer in answers]
    assert all(map(score, answers, truths))
    for answer, truth, other in zip(answers, truths, [*truths[1:], truths[0]], strict=True):
        assert score(answer, other) == float(truth == other)


@pytest.mark.parametrize(
    ("response", "right"),
    [
        ("#### 72\nWait.\n#### Answer: 75", 0.0),
        ("#### 72\nWait.\n#### about 75", 0.0),
        ("#### 72\nWait.\n#### 75k", 0.0),
        ("#### 72\nWait.\n#### (75)", 0.0),
        ("#### 72\nWait.\n#### 75 or 76", 0.0),
        ("#### 72\n#### none", 1.0),
        ("#### (72)", 1.0),
        ("#### $\\boxed{72}$", 1.0),
        ("#### \\$72", 1.0),
    ],
)
def test_the_last_mark_with_digits_counts(response, right):
    """verl passes over marks whose number it cannot read."""
    assert score(response, "72") == right
