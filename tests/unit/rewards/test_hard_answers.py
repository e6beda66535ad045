r"""Responses that are very long, or unbalanced: each is scored, in time linear in its length.

What takes longer does not end before the time limit of the tests.
"""

import pytest

from verl_hpc.rewards.functions import format as form
from verl_hpc.rewards.functions import gsm8k, multiple_choice
from verl_hpc.rewards.functions import math as math_reward
from verl_hpc.rewards.functions.exact_match import exact_match
from verl_hpc.rewards.functions.format import Options as FormatOptions
from verl_hpc.rewards.functions.multiple_choice import Options as MultipleChoiceOptions

MEGA, MANY = 3 * 10**5, 10**4
FORM = form.make(FormatOptions(tags=["think", "answer"]))
CHOICE = multiple_choice.make(MultipleChoiceOptions())
SCORERS = {
    "exact_match": exact_match,
    "format": lambda text, _: FORM(text),
    "flexible": lambda *given: gsm8k.compute_score(*given, method="flexible"),
    "gsm8k": gsm8k.compute_score,
    "math": lambda *given: math_reward.compute_score(*given, timeout_s=0.5),
    "multiple_choice": lambda *given: CHOICE(*given)["score"],
}
LONG = {
    "blanks": " " * MEGA,
    "lines": "\n" * MEGA,
    "one word": "x" * MEGA,
    "digits": "#### " + "7" * MEGA,
    "digits in groups": "#### 7" + ",777" * (MEGA // 4),
    "digits in a box": rf"\boxed{{{'7' * MEGA}}}",
    "a long box": rf"\boxed{{{'7 + ' * (MEGA // 4)}7}}",
    "braces": "{" * MEGA,
    "braces in a box": r"\boxed{" + "{" * MEGA,
    "braces that close": r"\boxed{7" + "}" * MEGA,
    "backslashes": "\\" * MEGA,
    "parentheses": "(" * MEGA,
    "dollars": "answer: $" * (MEGA // 9),
    "open boxes": r"\boxed{" * MANY,
    "boxes in boxes": r"\boxed{" * MANY + "7" + "}" * MANY,
    "open formulas": r"answer: \(" * MANY,
    "marks": "#### " * MANY,
    "marks of no numbers": "#### x = \n" * MANY,
    "cues": "the answer is " * MANY,
    "tags": "<answer>" * MANY,
    "tags in tags": "<think>" * MANY + "</think>" * MANY,
    "labels": "A. x\n" * MANY,
    "conclusions": "so " * MANY,
}
SHORT = ["{", "}", "\\", r"\boxed", r"\boxed{", r"\boxed}", r"\fbox{}", "$", "####", "#### -", "\0"]


@pytest.mark.parametrize("scorer", SCORERS)
def test_no_long_or_broken_answer_is_right_or_an_error(scorer):
    for name, response in [*LONG.items(), *((text, text) for text in SHORT)]:
        truth = "H" if scorer == "multiple_choice" else "8"
        assert SCORERS[scorer](response, truth) == 0.0, name


@pytest.mark.parametrize(
    ("scorer", "form", "truth"),
    [
        ("gsm8k", "#### {}\n", "7"),
        ("math", r"\boxed{{{}}} ", "7"),
        ("math", r"\fbox {{\frac{{{}}}{{1}}}} ", "7"),
        ("math", r"$\boxed {}$ ", "7"),
        ("math", "The answer is {}. ", "7"),
        ("multiple_choice", r"\boxed{{{}}} ", "B"),
        ("multiple_choice", "<answer>{}</answer> ", "B"),
        ("multiple_choice", "The answer is {}. ", "B"),
    ],
)
def test_of_ten_thousand_answers_the_last_one_counts(scorer, form, truth):
    others = form.format("D") * MANY
    assert SCORERS[scorer](others + form.format(truth), truth) == 1.0
    assert SCORERS[scorer](form.format(truth) + others, truth) == float(scorer == "gsm8k")


@pytest.mark.parametrize("answer", ["(" * 450 + "7" + ")" * 450, "(10^{10})!", "9^{" * 200 + "9"])
def test_an_answer_that_cannot_be_judged_is_wrong(answer):
    closing = "}" * (answer.count("{") - answer.count("}"))
    assert SCORERS["math"](rf"\boxed{{{answer}{closing}}}", "7") == 0.0


def test_what_is_not_compared_is_counted():
    def graded(response, timeout_s=60.0):
        return math_reward.math(response, "7", timeout_s)

    compared = {"score": 0.0, "no_answer": 0.0, "not_judged": 0.0}
    assert graded(r"\boxed{7}") == compared | {"score": 1.0}
    assert graded(r"\boxed{8}") == compared
    for response in ("I do not know", r"\boxed{7} or \boxed{8"):
        assert graded(response) == compared | {"no_answer": 1.0}
    assert graded(LONG["a long box"]) == compared | {"not_judged": 1.0}
    assert graded(r"\boxed{(10^{10})!}", timeout_s=0.5) == compared | {"not_judged": 1.0}
    for scorer, right, wrong in ((gsm8k.gsm8k, "#### 7", "#### 8"), (CHOICE, "(H)", "(B)")):
        truth = "7" if scorer is gsm8k.gsm8k else "H"
        assert scorer(right, truth) == {"score": 1.0, "no_answer": 0.0}
        assert scorer(wrong, truth) == {"score": 0.0, "no_answer": 0.0}
        assert scorer("?", truth) == {"score": 0.0, "no_answer": 1.0}


@pytest.mark.parametrize(
    ("answer", "truth"),
    [
        (r"\infty}{", r"\infty}{"),
        (r"0.3330.333\infty\ln 0\ln 0", r")\pi or :\pi10"),
        (r"\inftyy\leq\ln 0:0.333", "-e"),
        (r"0.333<\log0}{\frac{", r"0.333<\log0}{\frac{"),
        ("{", r"\frac{"),
        ("1/0", "0^0"),
    ],
)
def test_what_is_no_formula_is_wrong_and_no_error(answer, truth):
    assert math_reward.compute_score(rf"\boxed{{{answer}}}", truth) == 0.0
