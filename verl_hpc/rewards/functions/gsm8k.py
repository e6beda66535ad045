"""Score answers to grade-school problems: a number after '####'."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

from verl_hpc.errors import RewardError
from verl_hpc.rewards.numbers import NUMBER, is_changed, read_number, value_of

DATA_SOURCES = ("openai/gsm8k",)
TAIL = 300
"""Characters at the end of a response that the flexible method reads, as in verl."""
METHODS = ("strict", "flexible")
_MARK = re.compile(r"####[ \t]+(?:\*\*)?(?P<line>(?:(?!####)[^\n])*)")
_DIGIT = re.compile(r"\d")
_OPENED = re.compile(r"\A(?:\\boxed\s?\{|\\\(|\\(?=\$)|\$(?=\\)|[(*\s])+")
_OR = re.compile(r"\d[^\n]{0,20}\bor\b[^\n]{0,8}\d")
"""Matches a line with two numbers to choose from, such as x = 7 or x = 8."""


def compute_score(
    solution_str: str,
    ground_truth: Any,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """Return `score` for the right number, `format_score` for another one, 0 for none.

    Unlike verl, numbers are compared as exact rationals: '$1,200.' and '1200.0' are equal, and so
    are '1/2' and '0.5'. '7,2', '10-5', '3:30' and '5k' are not the number that they begin with.

    Args:
        method: strict takes the number of the last line with digits that is marked '#### ', or the
            one after '=' in it; flexible takes the last number of the last 300 characters.

    Raises:
        RewardError: `ground_truth` is not a number, or `method` is unknown.
    """
    return gsm8k(solution_str, ground_truth, method, format_score, score)["score"]


def gsm8k(
    solution_str: str,
    ground_truth: Any,
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> dict[str, float]:
    """Return `score` of `compute_score`, and `no_answer`, 1 if the response has none, else 0."""
    truth = _truth(ground_truth)
    if truth is None:
        raise RewardError(f"ground_truth = {ground_truth!r:.100} is not a number")
    answer = extract_number(solution_str, method)
    if answer is None:
        return {"score": 0.0, "no_answer": 1.0}
    return {"score": score if answer == truth else format_score, "no_answer": 0.0}


def extract_number(text: str, method: Literal["strict", "flexible"]) -> Fraction | None:
    """Return the number that a response ends with, or None.

    Raises:
        RewardError: `method` is unknown.
    """
    if method not in METHODS:
        raise RewardError(f"method = {method!r}; it must be one of {', '.join(METHODS)}")
    if method == "flexible":
        matches = NUMBER.finditer(text, max(len(text) - TAIL, 0))
        values = [value for number in matches if (value := value_of(number)) is not None]
        return values[-1] if values else None
    lines = [mark["line"] for mark in _MARK.finditer(text) if _DIGIT.search(mark["line"])]
    number = _marked(_OPENED.sub("", lines[-1])) if lines else None
    if number is None or is_changed(number.string, number.end()):
        return None
    value = value_of(number)
    equal = read_number(number.string[number.end() :].rpartition("=")[2])
    return value if equal in (None, value) else None


def _marked(line: str) -> re.Match[str] | None:
    """Match the number at the beginning of a line, or after its last '='."""
    if _OR.search(line):
        return None
    return NUMBER.match(line) or NUMBER.match(line.rpartition("=")[2].lstrip())


def _truth(given: Any) -> Fraction | None:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Fraction(str(given)) if isfinite(given) else None
    return read_number(str(given))
