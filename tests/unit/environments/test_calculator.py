"""Sums that a model asks for; whatever it writes, nothing of it runs."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from verl_hpc.environments.calculator import Calculator, result_of
from verl_hpc.environments.environment import Done

numbers = st.integers(-999, 999)


@given(numbers, numbers, st.sampled_from("+-*"))
def test_sums_of_two_numbers(a, b, sign):
    expected = {"+": a + b, "-": a - b, "*": a * b}[sign]
    assert result_of(f"({a}) {sign} ({b})") == str(expected)


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("12*(3+4)", "84"),
        (" 7 / 2 ", "3.5"),
        ("6/3", "2"),
        ("-2**3", "-8"),
        ("7//2 + 7%4", "6"),
        ("1/0", "error: division by zero"),
        ("", "error: not a sum"),
        ("1+", "error: not a sum"),
        ("True + 1", "error: not a sum"),
        ("'a'*9", "error: not a sum"),
        ("__import__('os').getpid()", "error: not a sum"),
        ("(lambda: 1)()", "error: not a sum"),
        ("9**9**9", "error: not a sum"),
        ("(0-8)**0.5", "error: not a sum"),
        ("1e308*10", "error: not a sum"),
        ("(" * 80 + "1" + ")" * 80, "1"),
        ("1" * 201, "error: more than 200 characters"),
        ("(10**64)**64*(10**64)**64", "error: the result is too long"),
        ("10**64*10**64*10**64*10**64", "error: the result is too long"),
    ],
)
def test_what_it_says(text, result):
    assert result_of(text) == result


@pytest.mark.parametrize(
    ("turn", "said"),
    [
        ("so <calc>1+2</calc>", "3"),
        ("<calc>9<calc>1+2</calc>\n", "3"),
        # A token may hold the end of a tag and more; without rollout.stop the model writes on.
        ("<calc>1+2</calc>.", "3"),
        ("<calc>1+1</calc> is 3, or <calc>1+2</calc>, no?", "3"),
        ("3", None),
        ("<calc>1+2", None),
        ("1+2</calc>", None),
        ("</calc>1+2<calc>", None),
    ],
)
def test_the_last_sum_of_a_turn_is_answered(turn, said):
    assert Calculator().step([], turn) == (Done() if said is None else said)


def test_tags_and_words_of_ones_own():
    tool = Calculator(begin="[", end="]", template="={result};")
    assert tool.step([], "[2*3]") == "=6;"
