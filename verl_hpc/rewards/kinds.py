r"""Tell apart short answers that math-verify wrongly takes for equal."""

from __future__ import annotations

import re
from itertools import accumulate

from verl_hpc.rewards.numbers import ALTERED
from verl_hpc.rewards.quantities import read_quantity

_QUALIFIED = re.compile(
    rf"\d\s*(?:{ALTERED}|\((?:extraneous|or)\b|[a-z]+,? (?:and )?\d+ [a-z]+\b)"
    r"|(?<![\d/._^])\d+ \d+(?! ?[/\d])",
    re.IGNORECASE,
)
"""Matches a number in words that change it: 5 squared, 5 or more, 1 hour 30 minutes, 1 2 3."""
_PADDED = re.compile(r"(?<![\d.])0\d+")
"""Digits that begin with 0: math-verify takes (1,000) for (1,0)."""
_VARIABLE = re.compile(r"(?<![A-Za-z\\])[A-Za-z](?![A-Za-z])")
_GREEK = re.compile(
    r"\\(?:alpha|beta|gamma|delta|epsilon|theta|kappa|lambda|mu|nu|xi|phi|rho|sigma|tau|omega)"
    r"(?![A-Za-z])"
)
_COMPUTED = re.compile(r"[\d!*/^+-]|\\(?:sqrt|frac|ln|log)")
"""Matches what makes a side of an equation more than a name."""
_DERIVATIVE = re.compile(r"\\frac\s*\{\s*d\w?\s*\}\s*\{\s*d[a-z]")


def differ(one: str, truth: str) -> bool:
    """Whether an answer and the truth, both without markup, differ in what math-verify drops: kinds
    of brackets, numbers of elements, cases of letters, derivatives, words after a number, and the
    left sides of equations."""
    both = (one, truth)
    return (
        one.count("'") != truth.count("'")
        or any(map(_DERIVATIVE.search, both))
        or _is_to_solve(one, truth)
        or _PADDED.findall(one) != _PADDED.findall(truth)
        or _is_broken_chain(one)
        or _counts_differ(one, truth)
        or {_kind(one), _kind(truth)} == {True, False}
        or _cases_differ(one, truth)
        or any(map(_QUALIFIED.search, both))
        or not all(map(_is_balanced, both))
    )


def equal_words(one: str, other: str) -> bool | None:
    """Whether two texts are the same words; None where they are formulas. Letters of a word are no
    product: HTH is not HHT."""
    if not (_are_words(one) and _are_words(other)):
        return None
    return one == other or (len(one) > 2 and one.casefold() == other.casefold())


def are_list_and_number(one: str, other: str) -> bool:
    """Whether one is a list and the other a number with commas: '32, 349' and '32,349'."""
    spaced = [re.search(r"\d,\s+\d{3}(?!\d)", text) is not None for text in (one, other)]
    return spaced[0] != spaced[1] and read_quantity(other if spaced[0] else one) is not None


def _are_words(text: str) -> bool:
    """Whether a text is words, or a sequence such as HTH, and no product of a few variables."""
    is_plain = re.fullmatch(r"[A-Za-z][A-Za-z ,]*", text) is not None
    return is_plain and re.search(r"[A-Za-z]{3}|[A-Z][A-Za-z]|[a-z][A-Z]", text) is not None


def _is_to_solve(answer: str, truth: str) -> bool:
    """Whether an answer is an equation that gives a number to more than a variable: 2x = 10."""
    side, equals, _ = answer.partition("=")
    if not equals or "=" in truth:
        return False
    # Names of what was asked for: f(3), a_1, \\angle ABC, a + b
    named = re.sub(r"[A-Za-z]\([^()]*\)|_\{?\w+\}?", "", side)
    letters = {*_GREEK.findall(named)}
    named = re.sub(r"\\(?!sqrt|frac|ln|log)[A-Za-z]+", "", named)
    letters.update(_VARIABLE.findall(re.sub(r"(\d)", r"\1 ", named)))
    return len(letters) == 1 and _COMPUTED.search(named) is not None


def _is_broken_chain(text: str) -> bool:
    """Whether a chain of equations equates different whole numbers: x = 5 = 6."""
    sides = [read_quantity(side) for side in text.split("=")]
    whole = {side.value for side in sides if side and side.decimals == 0 and not side.percent}
    return len({value for value in whole if value.denominator == 1}) > 1


def _counts_differ(one: str, other: str) -> bool:
    """Whether two lists without brackets have other numbers of elements: 1,1,2 and 1,2."""
    counts = [
        len(re.split(r",\s*and\b|,|\band\b", text))
        for text in (one, other)
        if not re.search(r"[()\[\]{}]", text)
    ]
    return len(counts) == 2 and min(counts) > 1 and counts[0] != counts[1]


def _kind(text: str) -> bool | None:
    """Return True for a set in braces, False for a pair or an interval, None for other texts."""
    text = re.sub(r"^[A-Za-z]\s*\\in\s*", "", text)
    if text.startswith("\\{"):
        return True
    return False if re.fullmatch(r"[(\[][^()\[\]]*,[^()\[\]]*[)\]]", text) else None


def _is_balanced(text: str) -> bool:
    """Whether all braces are closed, in order."""
    depths = list(accumulate({"{": 1, "}": -1}.get(sign, 0) for sign in text))
    return min(depths, default=0) == 0 and depths[-1:] in ([], [0])


def _cases_differ(one: str, other: str) -> bool:
    """Whether a variable of one is a variable of the other in the other case: r and R."""
    first, second = (set(_VARIABLE.findall(text)) for text in (one, other))
    return bool({v.swapcase() for v in first - second} & (second - first))
