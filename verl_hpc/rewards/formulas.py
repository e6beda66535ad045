r"""Whether two short LaTeX texts say the same, by math-verify and exact arithmetic."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import cache
from types import ModuleType
from typing import Any

from verl_hpc.rewards.kinds import are_list_and_number, differ, equal_words
from verl_hpc.rewards.notation import in_latex, without_name
from verl_hpc.rewards.quantities import (
    Quantity,
    equal_quantities,
    is_near,
    read_quantity,
    without_markup,
    without_unit,
)

_IN_A_BASE = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?(\d+)\}?")
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_NAMED = re.compile(r"\s*([A-Za-z](?:_\w+)?)\s*=\s*([^=]+)")
_LETTER = re.compile(r"[A-Za-z]")
_ARITHMETIC = re.compile(r"\\(?:[dt]?frac|sqrt|pi|times|cdot|div|left|right)(?![A-Za-z])")
_SPACES = re.compile(r"(?<![A-Za-z0-9.]) | (?![A-Za-z0-9.])")
"""Those that part no words and numbers."""
_MIXED = re.compile(r"(?<![\w.^/])(\d+) (\d+)/(\d+)(?![\w.])")
_DIGITS = 60


def equal(answer: str, truth: str) -> bool:
    """Whether an answer is mathematically equal to the truth, and of its kind.

    math-verify reads formulas and says which are equal; it compares numbers to six decimals, and
    drops much that tells texts apart, which `kinds` looks at.
    """
    answer, truth = in_latex(answer), in_latex(truth)
    if ("=" in answer) != ("=" in truth):
        answer, truth = without_name(answer), without_name(truth)
    plain, plain_truth = without_markup(answer), without_markup(truth)
    if are_list_and_number(plain, plain_truth):
        return False
    if _SPACES.sub("", plain) == _SPACES.sub("", plain_truth):
        return plain != ""
    for rule in (_equal_in_bases, _equal_times, equal_words, _equal_by_name, _equal_chain):
        if (decided := rule(plain, plain_truth)) is not None:
            return decided
    number, true_number = read_quantity(plain), read_quantity(plain_truth)
    if number and true_number:
        return equal_quantities(number, true_number)
    if differ(plain, plain_truth):
        return False
    try:
        return _equal_formulas(answer, truth, true_number)
    except Exception:
        # sympy raises errors of many kinds for what is no formula: it equals nothing.
        return False


def _equal_in_bases(one: str, other: str) -> bool | None:
    """Whether numbers of which one has a base are the same text; None without a base."""
    found = _IN_A_BASE.fullmatch(one), _IN_A_BASE.fullmatch(other)
    if not any(found):
        return None
    return bool(found[0] and found[1] and found[0].groups() == found[1].groups())


def _equal_times(one: str, other: str) -> bool | None:
    """Whether times of a day are the same; None where one is no time."""
    times = _TIME.fullmatch(one), _TIME.fullmatch(other)
    if times[0] and times[1] and all(time[2] or time[3] for time in times if time):
        return _same_time(times[0].groups(), times[1].groups())
    return None


def _equal_by_name(one: str, other: str) -> bool | None:
    """Whether values of variables, such as 'x = 3, y = 4', are those of the other text: by their
    names, or in the names' order where that has none. None without such values."""
    found = [_named_values(text) for text in (one, other)]
    names = sorted(next(filter(None, found), {}))
    if not names:
        return None
    for i, text in enumerate((one, other)):
        values = re.sub(r"^[(\[]|[)\]]$", "", text).split(",")
        if not found[i] and len(values) == len(names):
            found[i] = dict(zip(names, values, strict=True))
    first, second = found
    return first.keys() == second.keys() and all(equal(first[n], second[n]) for n in first)


def _equal_chain(one: str, other: str) -> bool | None:
    r"""Whether all sides of a chain of numbers, such as 'x = \frac{3}{4} = 0.75', are the other
    text; None where there is no such chain."""
    first, *sides = one.split("=")
    if without_name(f"{first}=0") != "0":
        sides.insert(0, first)
    if "=" not in one or "=" in other or any(map(_is_of_letters, sides)):
        return None
    return all(equal(side, other) for side in sides)


def _is_of_letters(side: str) -> bool:
    return _LETTER.search(_ARITHMETIC.sub("", side)) is not None


def _named_values(text: str) -> dict[str, str]:
    """The values of a text such as 'x = 3, y = 4', by their variables; nothing of another text,
    nor of several values of one variable, such as 'x = 3, x = 4'."""
    found = [_NAMED.fullmatch(part) for part in text.split(",")]
    values = {part[1]: part[2] for part in found if part}
    return values if len(values) == len(found) > 1 else {}


def _equal_formulas(answer: str, truth: str, true_number: Quantity | None) -> bool:
    (answer, unit), (truth, true_unit) = map(without_unit, (answer, truth))
    if unit and true_unit and unit != true_unit:
        return False
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


def _parsed(text: str) -> list[Any]:
    """The formula with its decimals as fractions, and its text."""
    library = math_verify_library()
    latex = _extraction(library)
    text = re.sub(r"\\(?:boxed|fbox)(?![A-Za-z])", "", text)
    text = _MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    # Without its own timeout, which would reset ours and fail off the main thread.
    found = library.parse(f"\\boxed{{{text}}}", [latex], parsing_timeout=None)
    return [_with_fractions(one) for one in found]


@cache
def _extraction(library: ModuleType) -> Any:
    """How math-verify reads a text. It takes t, h, m, ab and others behind a number for units."""
    usual = library.LatexExtractionConfig().normalization_config
    return library.LatexExtractionConfig(False, 0, replace(usual, units=False))


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
