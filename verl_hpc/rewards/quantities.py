r"""Read short answers that are one number, in words or LaTeX, with a unit or a percent sign."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from verl_hpc.rewards.numbers import ALTERED, MAGNITUDE, NUMBER, is_changed, read_number, value_of

_NOTHING = re.compile(r"\\(?:left|right|displaystyle)(?![A-Za-z])|\\?\$|\\[()\[\]]|[*`]{2}")
_TEXT = re.compile(r"\\(?:text(?:bf|rm|it|normal)?|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_FRACTION = re.compile(
    r"(\d?)\s*\\frac\s*(?:\{\s*(-?\d+)\s*\}|(\d))\s*(?:\{\s*(\d+)\s*\}|(\d))(?!\s*[\d^!])"
)
_DOLLARS = re.compile(
    rf"\\\$\s?([\d.,]*\d(?:\s{{1,3}}{MAGNITUDE}\b)?)"
    r"(?!\d|\s*[A-Za-z]\b|[A-Za-z])"
)
_REPEATING = re.compile(
    r"(-?)(\d*)\.(\d*?)(?:\s*\\overline\s*\{?(\d+)\}?"
    r"|(?:(\d)\5\5+|(\d\d+)\6+)\s?(?:\.\.\.|\u2026|\\(?:l|c)?dots))"
)
_OUT_OF = re.compile(r"(\d+)\s+out\s+of\s+(\d+)")
_UNIT = re.compile(r"[a-z]+(?: [a-z]+)*(?: ?/ ?[a-z]+)?(?:\^?[23])?", re.IGNORECASE)
_BEHIND_A_FORMULA = re.compile(
    r"(?<=[\w})])(?:(?:\s|\\[,;: ]|~)*"
    r"\\(?:text(?:bf|rm|it|normal)?|mathrm|mbox)\s*\{(?P<set>[^{}]+)\}"
    r"|\s+(?P<plain>[A-Za-z]{2,}(?: [A-Za-z]{2,})*(?:/[A-Za-z]{1,6})?))"
    r"(?P<power>\^?\{?[23]?\}?)[\s$.]*\Z"
)
_PERCENT = ("%", "percent", "percentage", "pct")
_DEGREES = re.compile(r"\s*\^\s*\{?\s*\\circ\s*\}?|\u00b0")
_NO_UNITS = {"and", "or", "to", "out", "of", "not", "mod", "pi", "sqrt", "plus", "minus", "times"}
_LIMITING = re.compile(
    rf"\A(?:{ALTERED}|percent)|\b(?:or|out|not|mod|plus|minus|is|if|when|where|unless|except|less|more)\b"
)
"""Matches words after a formula that are more than a unit."""

_UNITS = {
    name: unit
    for unit, names in {
        "mm": "mm millimeter millimetre", "cm": "cm centimeter centimetre", "m": "m meter metre",
        "km": "km kilometer kilometre", "in": "in inch", "ft": "ft foot feet", "yd": "yd yard",
        "mi": "mi mile", "mg": "mg milligram", "g": "g gram", "kg": "kg kilogram",
        "lb": "lb pound", "oz": "oz ounce", "s": "s sec second", "min": "min minute",
        "h": "h hr hour", "day": "day", "week": "week", "month": "month", "year": "yr year",
        "ml": "ml milliliter millilitre", "l": "l liter litre", "cent": "cent",
        "dollar": "dollar", "degree": "deg degree", "radian": "rad radian",
        "ton": "ton tonne", "gal": "gal gallon",
    }.items()
    for name in names.split()
}  # fmt: skip
_SHORT_UNITS = {"mm", "cm", "km", "ft", "mg", "kg", "mph"}
"""Short units that are read after a formula; other short words are products of variables."""


@dataclass(frozen=True)
class Quantity:
    """A number and the form in which it is written."""

    value: Fraction
    percent: bool = False
    unit: str | None = None
    """A known unit with its power; None for other words or none."""
    may_be_variable: bool = False
    """Whether the unit is a letter that touches the number, as in 2m."""
    decimals: int = 0


def without_markup(text: str) -> str:
    """Return a short text without layout commands of LaTeX and Markdown."""
    text = text.replace("\\varnothing", "\\emptyset")
    text = re.sub(r"\\!\s*", "", text.replace("{,}", ","))
    text = " ".join(_TEXT.sub(r" \1 ", text).split())
    text = _DOLLARS.sub(r"\1 dollars", text)
    text = _NOTHING.sub("", text.replace("\\%", "%"))
    text = re.sub(r"\\[dtc]frac(?![A-Za-z])", r"\\frac", text)
    text = _TEXT.sub(r" \1 ", _DEGREES.sub(" degrees ", text))
    return " ".join(re.sub(r"\\[,;: ]|~", " ", text).split())


def read_quantity(text: str) -> Quantity | None:
    r"""Read a text that is one number and at most a unit; None for others.

    '3 out of 4' is 3/4; 0.\overline{3} and 0.333... are 1/3, and 5 million is 5000000.
    """
    plain = without_markup(text)
    plain = plain if plain.endswith("..") else plain.removesuffix(".")
    plain = _FRACTION.sub(_plain_fraction, plain)
    # Repeating decimals and ratios first, then a plain number with its unit.
    if repeating := _REPEATING.fullmatch(plain):
        sign, whole, once, *blocks = repeating.groups()
        return Quantity(_repeated(sign, whole, once, next(filter(None, blocks))))
    if ratio := _OUT_OF.fullmatch(plain):
        value = read_number(f"{ratio[1]}/{ratio[2]}")
        return Quantity(value) if value is not None and value.denominator > 1 else None
    match = NUMBER.match(plain)
    value = value_of(match) if match else None
    if match is None or value is None or is_changed(plain, match.end()):
        return None
    rest = plain[match.end() :].replace(" ^", "^")
    decimals = (match["plain"] or "").partition(".")[2]
    if rest.strip().lower() in _PERCENT:
        return Quantity(value, percent=True, decimals=len(decimals))
    if rest and not _is_unit(rest):
        return None
    is_letter = len(rest) == 1 and rest.isalpha()
    return Quantity(value, unit=_known(rest), may_be_variable=is_letter, decimals=len(decimals))


def without_unit(formula: str) -> tuple[str, str | None]:
    r"""Return a formula without the unit after it, and the unit if it is known: '2\pi', 'cm2'.

    A text in \text{} is a unit, as are words that are known or have four letters; other letters
    are variables, such as 2ab or 5t.
    """
    match = _BEHIND_A_FORMULA.search(formula)
    if match is None:
        return formula, None
    words = (match["set"] or match["plain"]).replace(".", "").strip(" ~").lower()
    if match["plain"] and len(words) < 4 and words not in _SHORT_UNITS:
        return formula, None
    unit = _known(words + match["power"].strip("^{}"))
    is_unit = _UNIT.fullmatch(words) and not _LIMITING.search(words)
    return (formula[: match.start()], unit) if is_unit else (formula, None)


def equal_quantities(answer: Quantity, truth: Quantity) -> bool:
    """Whether an answer is the true number, or an exact number of which the truth is the rounding.

    28% is both 28 and 0.28. Units count if both are known: 18 cm is not 18 m. If the truth may be a
    variable's multiple, such as 2m, its letter is needed.
    """
    if truth.may_be_variable and not answer.unit:
        return False
    if answer.unit and truth.unit and answer.unit != truth.unit:
        return False
    if answer.percent == truth.percent:
        return answer.value == truth.value or is_rounding(truth, answer.value)
    percent, other = (answer, truth) if answer.percent else (truth, answer)
    return other.value in (percent.value, percent.value / 100)


def is_rounding(truth: Quantity, exact: Fraction) -> bool:
    """Whether a truth of three or more decimals is the rounding of a number without a finite
    decimal."""
    rest = exact.denominator
    for prime in (2, 5):
        while rest % prime == 0:
            rest //= prime
    return truth.decimals >= 3 and rest > 1 and is_near(truth, exact)


def is_near(truth: Quantity, exact: Fraction) -> bool:
    """Whether a number rounds to the truth in as many decimals as that has."""
    return abs(exact - truth.value) <= Fraction(1, 2 * 10**truth.decimals)


def _repeated(sign: str, whole: str, once: str, again: str) -> Fraction:
    """Return the value of a repeating decimal such as 0.1666...: 1 occurs once, 6 repeats."""
    first = Fraction(int(whole + once or "0"), 10 ** len(once))
    rest = Fraction(int(again), 10 ** len(once) * (10 ** len(again) - 1))
    return -(first + rest) if sign else first + rest


def _plain_fraction(found: re.Match[str]) -> str:
    over, under = found[2] or found[3], found[4] or found[5]
    return f"{found[1]} {over}/{under}" if found[1] else f"{over}/{under}"


def _is_unit(rest: str) -> bool:
    words = re.findall(r"[a-z]+", rest.lower())
    if not _UNIT.fullmatch(rest.strip().replace("{", "").replace("}", "")) or not words:
        return False
    # Letters that touch a number, as in 3x, and single ones are variables unless they are a unit.
    named = rest[0].isspace() and all(len(word) > 1 for word in words)
    return (named or _known(rest) is not None) and not _NO_UNITS.intersection(words)


def _known(rest: str) -> str | None:
    """Return the unit with its power and denominator, such as 'm2', 'km/h' or 'degree f', or
    None."""
    over, _, under = re.sub(r"\bper\b", "/", rest.lower()).partition("/")
    words = re.findall(r"[a-z]+", over)
    power = "2" if {"square", "sq"} & {*words} else "3" if "cubic" in words else ""
    names = [_unit(w) or w for w in words if w not in ("square", "sq", "cubic", "squared", "cubed")]
    if not names or _unit(names[0]) is None:
        return None
    unit = names[0] + next(iter(re.findall(r"[23]", over)), power)
    if names[0] == "degree" and len(names) > 1:
        unit += f" {names[1][0]}"
    per = [_unit(word) or word for word in re.findall(r"[a-z]+", under)]
    return f"{unit}/{per[0]}" if per else unit


def _unit(word: str) -> str | None:
    return next((_UNITS[w] for w in (word, word[:-1], word[:-2]) if w in _UNITS), None)
