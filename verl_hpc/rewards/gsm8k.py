"""The answer of a grade-school problem: a number after '####'."""

from __future__ import annotations

import re
from fractions import Fraction
from math import isfinite
from typing import Any, Literal

from verl_hpc.errors import RewardError

TAIL = 300
"""Characters at the end of a response that the flexible method looks at, as in verl."""
METHODS = ("strict", "flexible")
_LONGEST = 100

_SPACE = "\u00a0\u2009\u202f "
_PLAIN = rf"(?:(?:[1-9]\d{{0,2}}(?:[,{_SPACE}]\d{{3}})+|\d+)(?:\.\d+)?|\.\d+)"
_NUMBER = re.compile(
    # No part of a longer number, nor of a sum, a time or a power.
    r"(?<!\d)(?<!\d[.,:^/*+x\u00d7-])(?<!\d\s[-+*/x\u00d7\u00f7]\s)"
    r"(?P<sign>[-+\u2212]?)(?:[$\u20ac\u00a3]\s?)?(?P<inner>[-\u2212]?)"
    rf"(?:(?:(?P<whole>{_PLAIN})\s)?(?P<over>\d+)\s?/\s?(?P<under>\d+)|(?P<plain>{_PLAIN}))"
    rf"(?![.,:^]?\d|[eE][-+]?\d|[kK]\b|[,{_SPACE}]\d{{3}}(?!\d)|\s\d+\s?/\s?\d"
    r"|\s?[-+*/x\u00d7\u00f7^]\s?\$?\d)"
)
_MARK = re.compile(r"####[ \t]+(?:\*\*)?(?P<line>[^\n]*)")


def compute_score(
    data_source: str,  # noqa: ARG001
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001
    method: Literal["strict", "flexible"] = "strict",
    format_score: float = 0.0,
    score: float = 1.0,
) -> float:
    """`score` for the right number, `format_score` for another one, 0 for none.

    As verl, but numbers are compared as exact rationals: '$1,200.' and '1200.0' are equal, '1/2'
    and '0.5' too. '7,2', '10-5', '3:30' and '5k' are not the number that they begin with.

    Args:
        method: strict takes the last number marked '#### ' in the whole response, or the one after
            '=' in its line; flexible takes the last number of the last 300 characters.

    Raises:
        RewardError: `ground_truth` is not a number, or `method` is unknown.
    """
    truth = _truth(ground_truth)
    if truth is None:
        raise RewardError(f"ground_truth = {ground_truth!r:.100} is not a number")
    answer = extract_number(solution_str, method)
    if answer is None:
        return 0.0
    return score if answer == truth else format_score


def extract_number(text: str, method: Literal["strict", "flexible"]) -> Fraction | None:
    """The number a response ends with, or None.

    Raises:
        RewardError: `method` is unknown.
    """
    if method not in METHODS:
        raise RewardError(f"method = {method!r}; it must be one of {', '.join(METHODS)}")
    if method == "flexible":
        found = _NUMBER.finditer(text, max(len(text) - TAIL, 0))
    else:
        found = filter(None, (_marked(mark["line"]) for mark in _MARK.finditer(text)))
    values = [value for number in found if (value := _value(number)) is not None]
    return values[-1] if values else None


def _marked(line: str) -> re.Match[str] | None:
    """The number that a line begins with, or that stands after its last '='."""
    return _NUMBER.match(line) or _NUMBER.match(line.rpartition("=")[2].lstrip())


def _truth(given: Any) -> Fraction | None:
    if isinstance(given, int | float) and not isinstance(given, bool):
        return Fraction(str(given)) if isfinite(given) else None
    found = _NUMBER.fullmatch(str(given)[:TAIL].strip().removesuffix("."))
    return _value(found) if found else None


def _value(found: re.Match[str]) -> Fraction | None:
    """The number; None where it is divided by zero, or has more digits than any answer."""
    if len(found[0]) > _LONGEST or (found["under"] and not int(found["under"])):
        return None
    whole, over, under = (found[part] or "" for part in ("whole", "over", "under"))
    size = _exact(found["plain"]) if found["plain"] else _exact(whole or "0")
    if under:
        size += Fraction(int(over), int(under))
    return size if found["sign"] + found["inner"] in ("", "+") else -size


def _exact(plain: str) -> Fraction:
    return Fraction(re.sub(rf"[,{_SPACE}]", "", plain))
