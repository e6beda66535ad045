"""The verdict in a judge's answer: a number on a scale, or a word such as correct.

The prompt of a judge can ask for a form, so forms are read and prose is not: "I would give it a 7"
is no verdict. Two kinds of places are read:

1. marked verdicts, of which the last counts: `Score: 7` where a line or a sentence begins,
   `"score": 7`, `[[7]]`, `<score>7</score>`, `Verdict: not correct`;
2. where there is none, a verdict that is the last line, or a word that is the first sentence.

What stands in quotes, in a fenced block or behind `>` is another's, and no verdict.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_hpc.rewards.thinking import BEGIN, behind_thinking

_FENCED = re.compile(
    r"(```|~~~)[^`~\n]{0,80}\n(?P<inside>[\s\S]*?)(?:^[ \t]*\1[`~]*|\Z)", re.MULTILINE
)
_JSON = re.compile(r"\s*\{\s*[\"}]")
_QUOTED_LINE = re.compile(r"^[ \t]*>.*$\n?", re.MULTILINE)
_QUOTED = re.compile(
    r"(?<!\\)\"(?:\\.|[^\"\\\n])*+\"|“[^”“\n]*+”|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`"
)
_IN_PLACE_OF_A_QUOTE = "\u2026"
_SHORT = 24
"""Characters of a quoted text that may be a value, such as "not correct"."""
_IS_A_KEY = re.compile(r"[ \t]*:")
_LEADS_TO_A_VALUE = re.compile(r"(?:[:=\]>]|\bis)[\s*_(\[{]{0,8}\Z")

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?(?![\d\w]|[.,]\d)"
_YES = r"correct|right|yes|true|pass(?:ed)?|equivalent|success(?:ful)?"
_NO = rf"incorrect|wrong|no|false|fail(?:ed|ure)?|unsuccessful|not[ _]+(?:a[ ])?(?:{_YES})"
_SIGNS = r"\u2705\u2714\u2611\u274c\u2716\u2717\u2718\ufe0f"
"""Ticks and crosses, which stand around a word."""
_OPEN = rf"[ \t\"'*_`\[({{${_SIGNS}]{{0,8}}(?:\\boxed[ ]?\{{(?:\\text\{{)?)?"
_CLOSED = rf"[ \t\"'*_`\])}}${_SIGNS}]{{0,8}}"
_VALUE = (
    rf"{_OPEN}(?:(?P<number>{_NUMBER})(?:{_CLOSED}(?:/|(?:out[ ])?of\b){_OPEN}(?P<scale>{_NUMBER})"
    rf"|[ ]?(?P<percent>%))?|(?P<no>{_NO})\b|(?P<yes>{_YES})\b){_CLOSED}"
)
_NAME = (
    r"(?:(?:the|my|its|so|final|overall|total|numeric|is)[ _-]){0,3}"
    r"(?:score|rating|grade|verdict|judge?ment|decision|conclusion|evaluation|mark|correctness"
    r"|correct|overall)"
)
"""What names the verdict on the whole. Other words before it name an aspect, or a bound."""
_BOUNDS = r"(?:[ ]?\([^()\n]{0,20}\d[^()\n]{0,20}\))?"
_BEGINS = r"(?:^[ \t]*(?:[-#\u2022][-# \t]{0,8})?|[.!?;|][ \t]{1,8}|[{,]\s{0,8}(?=[\"']))"
_MARKED = re.compile(
    rf"(?:{_BEGINS}{_OPEN}{_NAME}{_BOUNDS}{_CLOSED}(?:[:=\uff1a]|\bis\b)\s{{0,8}}"
    rf"|<(?:{_NAME}|answer|result)>\s{{0,8}}|\[result\]:?|\[(?=\[)){_VALUE}",
    re.IGNORECASE | re.MULTILINE,
)
_ALONE = re.compile(rf"(?:\A|(?<![:\n])\n+)(?:-[ ])?{_VALUE}[.!]?\Z", re.IGNORECASE)
_FIRST = re.compile(rf"{_OPEN}(?:(?P<no>{_NO})|(?P<yes>{_YES})){_CLOSED}(?:[.!](?=\s)|\n)", re.I)

_ENDS = re.compile(
    r"\Z|[\r\n\[\]<|}(]|[.!;](?!\d)|,(?!\s*(?:\d|or\b|no\b|but\b|says?\b))"
    r"|[-\u2013\u2014]+[ ](?!\d)|(?:because|since|as|for|points?|stars?)\b(?!\s+minus)",
    re.IGNORECASE,
)
"""What may stand behind a value and leaves it what it is."""
_CLAUSE = re.compile(r"(?:(?!,\s*[\"'])[^.!;|}<\n]){0,200}")
_TAKEN_AWAY = re.compile(
    r"\b(?:not?|but|however|except|only|apart|aside|part(?:s|ly|ial|ially)?|almost|nearly|if"
    r"|though|although|until|unless|up to|wait|actually|or|wrong|incorrect|false)\b|n['\u2019]t\b"
    r"|[-=]+>|[\u2192\u21d2?/]",
    re.IGNORECASE,
)
_TURNS = re.compile(r"\b(?:but|however|except|wait|actually|wrong|incorrect)\b", re.IGNORECASE)
"""What takes back a "correct", in its clause and in all that follows it."""


@dataclass(frozen=True)
class Scale:
    """What verdicts are mapped to."""

    minimum: float
    maximum: float

    def of_number(self, number: float, largest: float | None) -> float | None:
        """A number, or one of a largest; None where that is no part of this scale."""
        if largest is None or largest == self.maximum:
            return number
        if self.minimum != 0 or largest == 0 or not 0 <= number <= largest:
            return None
        return number / largest * self.maximum

    def of_word(self, positive: bool) -> float:
        """What a verdict without a number is on this scale."""
        return self.maximum if positive else self.minimum


def answer_of(text: str) -> str:
    """A model's text without its thinking; nothing where that has not ended."""
    answer = behind_thinking(text)
    return "" if BEGIN in answer else answer


def read_verdict(answer: str, scale: Scale) -> float | None:
    """The verdict in an answer without thinking, or None; it may be out of the scale's bounds."""
    text = _QUOTED_LINE.sub("", _FENCED.sub(_without_code, answer.strip()))
    text = _QUOTED.sub(_without_quotes, text).strip()
    if marked := list(_MARKED.finditer(text)):
        return _value(marked[-1], scale)
    first, last = _FIRST.match(text), _ALONE.search(text)
    values = {_value(match, scale) for match in (first, last) if match is not None}
    return values.pop() if len(values) == 1 else None


def _without_code(block: re.Match[str]) -> str:
    """A block is quoted, but for one that is JSON or the whole answer."""
    is_whole = len(block[0]) == len(block.string)
    return block["inside"] if is_whole or _JSON.match(block["inside"]) else _IN_PLACE_OF_A_QUOTE


def _without_quotes(quoted: re.Match[str]) -> str:
    """A quoted text is another's, but for a key of JSON and for the value of a verdict."""
    text, place = quoted[0], quoted.start()
    if len(text) == len(quoted.string):
        return text
    is_key = text[0] in "\"'" and _IS_A_KEY.match(quoted.string, quoted.end()) is not None
    before = quoted.string[max(0, place - _SHORT) : place]
    is_kept = len(text) <= _SHORT and not set(":=[") & set(text)
    return (
        text if is_kept and (is_key or _LEADS_TO_A_VALUE.search(before)) else _IN_PLACE_OF_A_QUOTE
    )


def _value(match: re.Match[str], scale: Scale) -> float | None:
    """The value of a verdict; None where what follows makes it another one or part of one."""
    found = match.groupdict()
    if not _is_clear(match):
        return None
    if found.get("number") is None:
        return scale.of_word(found["no"] is None)
    largest = 100.0 if found["percent"] else float(found["scale"] or 0) or None
    return scale.of_number(float(found["number"]), largest)


def _is_clear(match: re.Match[str]) -> bool:
    text, place = match.string, match.end()
    if match.re is _FIRST:
        return match["no"] is not None or _TURNS.search(text, place) is None
    if _ENDS.match(text, place) is None:
        return False
    clause = _CLAUSE.match(text, place)
    return match["yes"] is None or clause is None or _TAKEN_AWAY.search(clause[0]) is None
