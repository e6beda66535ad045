"""Read numbers as people and models write them, as exact rationals."""

from __future__ import annotations

import re
from fractions import Fraction

_LONGEST = 100
_SPACE = "\u00a0\u2009\u202f "
_PLAIN = rf"(?:(?:[1-9]\d{{0,2}}(?:[,{_SPACE}]\d{{3}})+|\d+)(?:\.\d+)?|\.\d+)"
_MAGNITUDES = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
MAGNITUDE = f"(?:{'|'.join(_MAGNITUDES)})"
"""Matches a word after a number that multiplies it."""
NUMBER = re.compile(
    # No part of a longer number, nor of a sum, a time or a power.
    r"(?<!\d)(?<!\d[.,:^/*+x\u00d7-])(?<!\d\s[-+*/x\u00d7\u00f7]\s)"
    r"(?P<sign>[-+\u2212]?)(?:[$\u20ac\u00a3]\s?)?(?P<inner>[-\u2212]?)"
    rf"(?:(?:(?P<whole>{_PLAIN})\s)?(?P<over>\d+)\s?/\s?(?P<under>\d+)|(?P<plain>{_PLAIN}))"
    rf"(?![.,:^]?\d|[eE][-+]?\d|[kK]\b|[,{_SPACE}]\d{{3}}(?!\d)|\s\d+\s?/\s?\d"
    r"|\s?[-+*/x\u00d7\u00f7^]\s?\$?\d)"
    rf"(?:[ ](?P<magnitude>(?i:{MAGNITUDE}))(?!\w))?"
)
"""Matches '-1,200.50', '$3', '1/2', '1 1/2', '5 million', and no part of '10-5', '3:30', '7,2',
'5k' and '1e3'."""

_COUNT = (
    r"(?:[-\u2212]?\$?\d|(?:zero|one|two|three|four|five|six|seven|eight|nine|ten|hundred|half)\b)"
)
"""Matches the beginning of a number, in digits or as a word."""
ALTERED = (
    r"(?:(?:squared|cubed|factorial|hal(?:f|ves)|thirds|fourths|quarters|fifths|sixths|sevenths|"
    r"eighths|ninths|tenths|(?:hundred|thousand|million|billion)ths|remainder|and a half|"
    r"hundred|thousand|million|billion|trillion|dozen|gross|bn|mil|lakh|crore|"
    r"or (?:more|less|fewer)|at (?:least|most)|(?:more|less) than|"
    r"(?:is )?(?:not|wrong|incorrect|impossible|extraneous)|isn['\u2019]t|wasn['\u2019]t)\b"
    rf"|(?:times|plus|minus|over|point|through|(?:in )?base)\s+{_COUNT})"
)
"""Matches words after a number that change it: 5 squared, 5 point two, 5 or more."""
_CHANGES = re.compile(
    r"\s*(?:[\u00b2\u00b3\u00b9\u00bc\u00bd\u00be\u2264\u2265\u2192?]|<(?![<|])|>(?!>)|\*\*\s?\d|\.\."
    r"|['_:\u2013\u2014]\s?\d|\s:\s?\d|[;&|]\s*\$?\d|->|\((?:or|wrong|not)\b"
    r"|\\(?:times|cdot|leq?|geq?|div|pm)(?![a-z])|or\b|,\s*(?:no|wait|or)\b"
    rf"|(?:,|and|to)\s*{_COUNT}|-?{ALTERED}"
    # 7 boys and 3 girls; 1 hour, 30 minutes
    r"|[a-z]+\s+(?:and\s+)?\d+\s*[a-z]+"
    r"|(?:hours?|hrs?|h|minutes?|mins?|days?|weeks?|months?|years?|feet|foot|ft|pounds?|lbs?|"
    r"dollars?|meters?|m|km|kilometers?|degrees?),\s+(?:and\s+)?\d+\s*[a-z]+)"
    # 7x, 7M; not 7m, 7s
    r"|(?-i:[A-KM-Za-fi-knp-rt-z](?![A-Za-z]))",
    re.IGNORECASE,
)
"""Matches text after a number that changes it, or makes it one of several."""


def is_changed(text: str, end: int) -> bool:
    """Whether the text after a number that ends there changes it: 7 or 8, 7 times 10, 7 hours 30
    minutes. Words of other kinds do not, such as 7 clips."""
    return _CHANGES.match(text, end) is not None


def value_of(found: re.Match[str]) -> Fraction | None:
    """Return the value of a match of `NUMBER`; None if it divides by zero, has two signs, or is
    longer than any answer."""
    if len(found[0]) > _LONGEST or (found["under"] and not int(found["under"])):
        return None
    if found["sign"] and found["inner"]:
        return None
    size = _exact(found["plain"] or found["whole"] or "0")
    if found["under"]:
        size += Fraction(int(found["over"]), int(found["under"]))
    size *= _MAGNITUDES.get((found["magnitude"] or "").lower(), 1)
    return size if found["sign"] + found["inner"] in ("", "+") else -size


def read_number(text: str) -> Fraction | None:
    """Return the value of a text that is one number, with or without a full stop, else None."""
    match = NUMBER.fullmatch(text.strip().removesuffix("."))
    return value_of(match) if match else None


def _exact(plain: str) -> Fraction:
    return Fraction(re.sub(rf"[,{_SPACE}]", "", plain))
