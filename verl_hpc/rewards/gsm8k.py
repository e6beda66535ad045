"""The answer of a grade-school problem: a number after '####'."""

from __future__ import annotations

import re
from decimal import Decimal, InvalidOperation
from typing import Any, Literal

from verl_hpc.errors import RewardError

TAIL = 300
"""Characters at the end of a response that may hold the answer, as in verl."""

NUMBER = r"-?\$?-?[0-9.,]+"
PATTERNS = {"strict": re.compile(f"#### ({NUMBER})"), "flexible": re.compile(NUMBER)}


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

    As verl, but numbers are compared as numbers: '$1,200.' and '1200.0' are equal.

    Args:
        method: strict takes the last number marked '#### ', flexible the last number.

    Raises:
        RewardError: `ground_truth` is not a number, or `method` is unknown.
    """
    truth = _number(str(ground_truth))
    if truth is None:
        raise RewardError(f"ground_truth = {ground_truth!r} is not a number")
    answer = extract_number(solution_str, method)
    if answer is None:
        return 0.0
    return score if answer == truth else format_score


def extract_number(text: str, method: Literal["strict", "flexible"]) -> Decimal | None:
    """The number a response ends with, or None.

    Raises:
        RewardError: `method` is unknown.
    """
    if method not in PATTERNS:
        raise RewardError(f"method = {method!r}; it must be one of {', '.join(PATTERNS)}")
    numbers = map(_number, reversed(PATTERNS[method].findall(text[-TAIL:])))
    return next((number for number in numbers if number is not None), None)


def _number(text: str) -> Decimal | None:
    try:
        return Decimal(re.sub(r"[$,\s]", "", text).removesuffix("."))
    except InvalidOperation:
        return None
