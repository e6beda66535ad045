r"""Compare two short LaTeX texts in one notation, by math-verify and exact arithmetic."""

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
from verl_hpc.rewards.quantities import (
    Quantity,
    equal_quantities,
    is_near,
    read_quantity,
    without_markup,
    without_unit,
)

_SIGNS = str.maketrans(
    {
        "\u2212": "-",
        "\u03c0": r"\pi ",
        "\u00d7": r"\times ",
        "\u00b7": r"\cdot ",
        "\u221e": r"\infty ",
    }
    | {"\u00bd": r"\frac{1}{2}", "\u00bc": r"\frac{1}{4}", "\u00be": r"\frac{3}{4}"}
    | {"\u2264": r"\leq ", "\u2265": r"\geq ", "\u222a": r"\cup "}
)
_POWERS = "\u2070\u00b9\u00b2\u00b3\u2074\u2075\u2076\u2077\u2078\u2079"
_POWER = re.compile(rf"(?<=[\w)}}])[{_POWERS}]+")
_POWER_DIGITS = str.maketrans(dict(zip(_POWERS, "0123456789", strict=True)))
_ROOT = re.compile(r"\u221a\s?(?:\(([^()]*)\)|(\d+|[A-Za-z]))")
_BRACED_COMMA = re.compile(r"(?<=\d)\s?\{,\}\s?(?=\d{3})")
_THOUSANDS = re.compile(r"(?<![\d.,(\[])(?<!\\\{)[1-9]\d{0,2}(?:,\d{3})+(?![\d,])")
_BRACKETED = re.compile(r"\s*\$?\s*(?:\\left\s*)?(?:\\?\{|[(\[])")
_NAME = re.compile(
    r"\s*\$?\s*(?:[A-Za-z]'{0,3}(?:_\{?\w+\}?)?\s?(?:\([^()=,]{1,40}\))?"
    r"|\\frac\s?\{d(?:\^\{?\d\}?)?\s?[A-Za-z]\}\s?\{d\s?[A-Za-z](?:\^\{?\d\}?)?\})\s*=\s*(?=[^\s=])"
)


def in_latex(text: str) -> str:
    r"""Return a short answer with LaTeX in place of Unicode, and numbers without separators.

    '2\u221a3' is 2\sqrt{3}, and '10{,}000\sqrt{2}' and '10,000\sqrt{2}' are 10000\sqrt{2}. In
    brackets a comma separates elements.
    """
    text = _ROOT.sub(lambda found: rf"\sqrt{{{found[1] or found[2]}}}", text)
    text = _POWER.sub(lambda found: f"^{{{found[0].translate(_POWER_DIGITS)}}}", text)
    text = text.translate(_SIGNS)
    if _BRACKETED.match(text):
        return _BRACED_COMMA.sub("", text)
    return _THOUSANDS.sub(lambda found: found[0].replace(",", ""), _BRACED_COMMA.sub(",", text))


def without_name(text: str) -> str:
    r"""Return the text after the name of a result: 3x^2 of 'f'(x) = 3x^2' and '\frac{dy}{dx} =
    3x^2'.

    A text with several equals signs, such as 'x = 3, y = 4', is returned unchanged.
    """
    match = _NAME.match(text)
    rest = text[match.end() :] if match else text
    return text if "=" in rest else rest


_IN_A_BASE = re.compile(r"\(?([0-9A-Za-z]+)\)?_\{?(\d+)\}?")
_TIME = re.compile(r"(\d{1,2})(?::(\d{2}))?\s*(?:([ap])\.?\s?m\.?)?", re.IGNORECASE)
_NAMED = re.compile(r"\s*([A-Za-z](?:_\w+)?)\s*=\s*([^=]+)")
_LETTER = re.compile(r"[A-Za-z]")
_ARITHMETIC = re.compile(r"\\(?:[dt]?frac|sqrt|pi|times|cdot|div|left|right)(?![A-Za-z])")
_SPACES = re.compile(r"(?<![A-Za-z0-9.]) | (?![A-Za-z0-9.])")
"""Spaces that do not separate words and numbers."""
_MIXED = re.compile(r"(?<![\w.^/])(\d+) (\d+)/(\d+)(?![\w.])")
_DIGITS = 60


def equal(answer: str, truth: str) -> bool:
    """Whether an answer is mathematically equal to the truth, and of its kind.

    math-verify reads formulas and compares them, but numbers only to six decimals, and it drops
    much that distinguishes texts, which `kinds` checks.
    """
    answer, truth = in_latex(answer), in_latex(truth)
    if ("=" in answer) != ("=" in truth):
        answer, truth = without_name(answer), without_name(truth)
    plain, plain_truth = without_markup(answer), without_markup(truth)
    if are_list_and_number(plain, plain_truth):
        return False
    if _SPACES.sub("", plain) == _SPACES.sub("", plain_truth):
        return plain != ""
    # Special forms first: each rule decides, or passes on with None.
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
    """Whether two numbers are the same text; None if neither has a base."""
    matches = _IN_A_BASE.fullmatch(one), _IN_A_BASE.fullmatch(other)
    if not any(matches):
        return None
    return bool(matches[0] and matches[1] and matches[0].groups() == matches[1].groups())


def _equal_times(one: str, other: str) -> bool | None:
    """Whether two times of day are the same; None if one is no time."""
    times = _TIME.fullmatch(one), _TIME.fullmatch(other)
    if times[0] and times[1] and all(time[2] or time[3] for time in times if time):
        return _same_time(times[0].groups(), times[1].groups())
    return None


def _equal_by_name(one: str, other: str) -> bool | None:
    """Whether values of variables, such as 'x = 3, y = 4', are those of the other text, by name, or
    in the order of names if that has none. None without such values."""
    by_name = [_named_values(text) for text in (one, other)]
    names = sorted(next(filter(None, by_name), {}))
    if not names:
        return None
    for i, text in enumerate((one, other)):
        values = re.sub(r"^[(\[]|[)\]]$", "", text).split(",")
        if not by_name[i] and len(values) == len(names):
            by_name[i] = dict(zip(names, values, strict=True))
    first, second = by_name
    return first.keys() == second.keys() and all(equal(first[n], second[n]) for n in first)


def _equal_chain(one: str, other: str) -> bool | None:
    r"""Whether all sides of a chain of numbers, such as 'x = \frac{3}{4} = 0.75', equal the other
    text; None without such a chain."""
    first, *sides = one.split("=")
    if without_name(f"{first}=0") != "0":
        sides.insert(0, first)
    if "=" not in one or "=" in other or any(map(_is_of_letters, sides)):
        return None
    return all(equal(side, other) for side in sides)


def _is_of_letters(side: str) -> bool:
    return _LETTER.search(_ARITHMETIC.sub("", side)) is not None


def _named_values(text: str) -> dict[str, str]:
    """Return the values of a text such as 'x = 3, y = 4' by variable; empty for other texts, or if
    one variable has several values, such as 'x = 3, x = 4'."""
    matches = [_NAMED.fullmatch(part) for part in text.split(",")]
    values = {part[1]: part[2] for part in matches if part}
    return values if len(values) == len(matches) > 1 else {}


def _equal_formulas(answer: str, truth: str, true_number: Quantity | None) -> bool:
    (answer, unit), (truth, true_unit) = map(without_unit, (answer, truth))
    if unit and true_unit and unit != true_unit:
        return False
    given, expected = _parsed(answer), _parsed(truth)
    if true_number and true_number.decimals >= 3 and given and _is_irrational(given[0]):
        return is_near(true_number, Fraction(str(_digits(given[0]))))
    options = {"numeric_precision": _DIGITS, "timeout_seconds": None}
    if not math_verify_library().verify(expected, given, **options):
        return False
    return not (given and expected) or _exactly(given[0], expected[0])


def _same_time(one: Sequence[str | None], other: Sequence[str | None]) -> bool:
    """Compare hours and minutes, and the half of the day if both give it."""
    halves = {half.lower() for half in (one[2], other[2]) if half}
    (hour, minute), (other_hour, other_minute) = (
        (int(time[0] or 0), time[1] or "00") for time in (one, other)
    )
    return (hour, minute) == (other_hour, other_minute) and len(halves) < 2


def _parsed(text: str) -> list[Any]:
    """Return math-verify's results for a text, with decimals as fractions."""
    library = math_verify_library()
    latex = _extraction(library)
    text = re.sub(r"\\(?:boxed|fbox)(?![A-Za-z])", "", text)
    text = _MIXED.sub(r"(\1+\\frac{\2}{\3})", text)
    # Without its own timeout, which would reset ours and fail off the main thread.
    formulas = library.parse(f"\\boxed{{{text}}}", [latex], parsing_timeout=None)
    return [_with_fractions(one) for one in formulas]


@cache
def _extraction(library: ModuleType) -> Any:
    """Return math-verify's settings without units: it takes t, h, m, ab and others after a number
    for them."""
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
    """Import math-verify, which takes longer than an answer may."""
    import math_verify

    # It warns on every rank that it has no timeout.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify
