r"""Whether two short LaTeX texts say the same, by math-verify and exact arithmetic."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate
from types import ModuleType
from typing import Any

from verl_hpc.rewards.numbers import ALTERED
from verl_hpc.rewards.quantities import (
    Quantity,
    equal_quantities,
    is_near,
    read_quantity,
    without_markup,
)

_IN_A_BASE = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?(\d+)\}?")
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_QUALIFIED = re.compile(
    rf"\d\s*(?:{ALTERED}|\(extraneous|[a-z]+,? (?:and )?\d+ [a-z]+\b)"
    r"|(?<![\d/._^])\d+ \d+(?! ?[/\d])",
    re.IGNORECASE,
)
"""A number in words that make it another one: 5 squared, 5 or more, 1 hour 30 minutes, 1 2 3."""
_ASSIGNED = re.compile(r"\A[A-Za-z]\s*=")
_SPACES = re.compile(r"(?<![A-Za-z0-9.]) | (?![A-Za-z0-9.])")
"""Those that part no words and numbers."""
_PADDED = re.compile(r"(?<![\d.])0\d+")
"""Digits that begin with 0: math-verify takes (1,000) for (1,0)."""
_MIXED = re.compile(r"(?<![\w.^/])(\d+) (\d+)/(\d+)(?![\w.])")
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_DIGITS = 60


def equal(answer: str, truth: str) -> bool:
    """Whether an answer is mathematically equal to the truth, and of its kind.

    math-verify reads formulas and says which are equal; it compares numbers to six decimals, and
    drops bases and kinds of brackets, which are looked at here.
    """
    plain, plain_truth = without_markup(answer), without_markup(truth)
    if _are_list_and_number(plain, plain_truth):
        return False
    if _SPACES.sub("", plain) == _SPACES.sub("", plain_truth):
        return plain != ""
    bases = _IN_A_BASE.fullmatch(plain), _IN_A_BASE.fullmatch(plain_truth)
    if any(bases):
        return all(bases) and bases[0].groups() == bases[1].groups()  # type: ignore[union-attr]
    times = _TIME.fullmatch(plain), _TIME.fullmatch(plain_truth)
    if times[0] and times[1] and all(time[2] or time[3] for time in times if time):
        return _same_time(times[0].groups(), times[1].groups())
    alone = ("=" in plain) != ("=" in plain_truth)
    number, true_number = (
        read_quantity(_ASSIGNED.sub("", text) if alone else text) for text in (plain, plain_truth)
    )
    if number and true_number:
        return equal_quantities(number, true_number)
    if _PADDED.findall(plain) != _PADDED.findall(plain_truth) or _is_broken_chain(plain):
        return False
    if {_kind(plain), _kind(plain_truth)} == {True, False} or _cases_differ(plain, plain_truth):
        return False
    if _QUALIFIED.search(plain) or _QUALIFIED.search(plain_truth):
        return False  # math-verify reads the number, or multiplies
    if not (_is_balanced(plain) and _is_balanced(plain_truth)):
        return False
    try:
        return _equal_formulas(answer, truth, true_number)
    except Exception:
        # sympy raises errors of many kinds for what is no formula: it equals nothing.
        return False


def _equal_formulas(answer: str, truth: str, true_number: Quantity | None) -> bool:
    found, expected = _parsed(answer), _parsed(truth)
    if true_number and true_number.decimals >= 3 and found and _is_irrational(found[0]):
        return is_near(true_number, Fraction(str(_digits(found[0]))))
    options = {"numeric_precision": _DIGITS, "timeout_seconds": None}
    if not math_verify_library().verify(expected, found, **options):
        return False
    return not (found and expected) or _exactly(found[0], expected[0])


def _same_time(one: Sequence[str | None], other: Sequence[str | None]) -> bool:
    """Hours and minutes, and the half of the day where both say it."""
    halves = {half.lower() for half in (one[2], other[2]) if half}
    (hour, minute), (other_hour, other_minute) = (
        (int(time[0] or 0), time[1] or "00") for time in (one, other)
    )
    return (hour, minute) == (other_hour, other_minute) and len(halves) < 2


def _kind(text: str) -> bool | None:
    """Whether it is a set in braces, or else a pair or an interval; None for other texts."""
    if text.startswith("\\{"):
        return True
    return False if re.fullmatch(r"[(\[][^()\[\]]*,.*[)\]]", text) else None


def _are_list_and_number(one: str, other: str) -> bool:
    """Whether one is a list and the other a number with commas: '32, 349' and '32,349'."""
    spaced = [re.search(r"\d,\s+\d{3}(?!\d)", text) is not None for text in (one, other)]
    return spaced[0] != spaced[1] and read_quantity(other if spaced[0] else one) is not None


def _is_broken_chain(text: str) -> bool:
    """Whether a chain of equations equates different whole numbers: x = 5 = 6."""
    sides = [read_quantity(side) for side in text.split("=")]
    whole = {side.value for side in sides if side and side.decimals == 0 and not side.percent}
    return len({value for value in whole if value.denominator == 1}) > 1


def _is_balanced(text: str) -> bool:
    """Whether all braces are closed, in order."""
    depths = list(accumulate({"{": 1, "}": -1}.get(sign, 0) for sign in text))
    return min(depths, default=0) == 0 and depths[-1:] in ([], [0])


def _cases_differ(one: str, other: str) -> bool:
    """Whether a variable of one is a variable of the other in the other case: r and R."""
    first, second = (set(_VARIABLE.findall(text)) for text in (one, other))
    return bool({v.swapcase() for v in first - second} & (second - first))


def _parsed(text: str) -> list[Any]:
    """The formula with its decimals as fractions, and its text."""
    library = math_verify_library()
    latex = library.LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    text = re.sub(r"\\(?:boxed|fbox)(?![A-Za-z])", "", text)
    text = _MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    # Without its own timeout, which would reset ours and fail off the main thread.
    found = library.parse(f"\\boxed{{{text}}}", [latex], parsing_timeout=None)
    return [_with_fractions(one) for one in found]


def _with_fractions(formula: Any) -> Any:
    import sympy

    if not isinstance(formula, sympy.Basic):
        return formula
    return formula.replace(lambda part: part.is_Float, lambda part: sympy.Rational(str(part)))


def _exactly(found: Any, expected: Any) -> bool:
    """Whether numbers agree in all digits, and an equation of numbers is true."""
    import sympy

    if found == expected:
        return True
    if isinstance(found, sympy.Eq) and not found.free_symbols:
        return _exactly(found.lhs, found.rhs)
    both = found, expected
    if not all(isinstance(one, sympy.Expr) and one.is_number for one in both):
        return True
    difference = (found - expected).doit()
    if difference.is_Rational:
        return bool(difference == 0)
    size = max(abs(sympy.N(one, 15)) for one in both)
    return bool(abs(_digits(difference)) <= size * sympy.Rational(1, 10**40))


def _is_irrational(formula: Any) -> bool:
    import sympy

    return isinstance(formula, sympy.Expr) and bool(formula.is_real) and not formula.is_rational


def _digits(formula: Any) -> Any:
    import sympy

    return sympy.N(formula, _DIGITS, maxn=400)


@cache
def math_verify_library() -> ModuleType:
    """math-verify, whose import takes longer than an answer may."""
    import math_verify

    # It warns on every rank that it has no timeout.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify
