r"""Bring formulas to one notation: Unicode, thousands, names of results."""

from __future__ import annotations

import re

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
_DIGITS = str.maketrans(dict(zip(_POWERS, "0123456789", strict=True)))
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
    text = _POWER.sub(lambda found: f"^{{{found[0].translate(_DIGITS)}}}", text)
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
