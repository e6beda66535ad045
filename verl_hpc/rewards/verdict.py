"""Read the verdict in a judge's answer: a number on a scale, or a word such as correct.

The prompt of a judge can ask for a form, so forms are read and prose is not: "I would give it a 7"
is no verdict. Two kinds of places are read:

1. verdicts with a name, which must agree, but for one that is final or overall: `Score: 7` where a
   line or a sentence begins, `"score": 7`, `<score>7</score>`, `Verdict: not correct`;
2. where there is none, the last `[[7]]`, a word that is the first sentence, and a verdict that is
   the last line, which must agree.

Text in quotes, in a fenced block or after `>` is somebody else's, and no verdict.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
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
"""Most characters of a quoted text that may be a value, such as "not correct"."""
_IS_A_KEY = re.compile(r"[ \t]*:")
_LEADS_TO_A_VALUE = re.compile(r"(?:[:=\]>]|\bis)[\s*_(\[{]{0,8}\Z")

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?(?![\d\w]|[.,]\d)"
_YES = r"correct|right|yes|true|pass(?:ed)?|equivalent|success(?:ful)?"
_NO = rf"incorrect|wrong|no|false|fail(?:ed|ure)?|unsuccessful|not[ _]+(?:a[ ])?(?:{_YES})"
_SIGNS = r"\u2600-\u27bf\u2b50\ufe0f\U0001f300-\U0001faff"
"""Ticks, crosses and other signs around a value."""
_OPEN = rf"[ \t\"'*_`\[({{${_SIGNS}]{{0,8}}(?:\\boxed[ ]?\{{(?:\\text\{{)?)?"
_CLOSED = rf"[ \t\"'*_`\])}}${_SIGNS}]{{0,8}}"
_VALUE = (
    rf"{_OPEN}(?:(?P<number>{_NUMBER})(?:{_CLOSED}(?:/|(?:out[ ])?of\b(?:[ ]a[ ]possible)?)"
    rf"{_OPEN}(?P<scale>{_NUMBER})|[ ]?(?P<percent>%))?|(?P<no>{_NO})\b|(?P<yes>{_YES})\b){_CLOSED}"
)
_LEAD = r"(?:(?:the|my|its|so|therefore|thus|hence|final|overall|total|numeric),?[ _-]){0,3}"
_NAME = rf"{_LEAD}(?:score|rating|grade|verdict|judge?ment|decision|conclusion|evaluation|overall)"
"""Matches names of the verdict on the whole. Other words before it name an aspect, or a bound."""
_BOUNDS = r"(?:[ ]?\([^()\n]{0,20}\d[^()\n]{0,20}\))?"
_BEGINS = r"(?:^[ \t]*(?:[-#\u2022][-# \t]{0,8})?|[.!?;|][ \t]{1,8}|[{,]\s{0,8}(?=[\"']))"
_NAMED = re.compile(
    rf"(?:{_BEGINS}{_OPEN}(?:{_NAME}{_BOUNDS}{_CLOSED}(?:[:=\uff1a]|(?=\n))"
    rf"|{_LEAD}(?:score|rating|grade|verdict)[ ]is\b:?"
    rf"|(?:is[ _-])?correct{_CLOSED}[:=\uff1a](?!{_OPEN}-?\d))(?P<gap>\s{{0,8}})"
    rf"|<{_NAME}>\s{{0,8}}|\[result\]:?){_VALUE}",
    re.IGNORECASE | re.MULTILINE,
)
_FINAL = re.compile(r"\b(?:final|overall)", re.IGNORECASE)
_IN_BRACKETS = re.compile(rf"\[(?=\[[^\[\]\n]{{1,24}}\]\]){_VALUE}", re.IGNORECASE)
_LAST = re.compile(
    rf"(?:\A|(?<![:=,\n])(?<! is)(?<! was)(?<! are)(?<! be)\n+)(?:-[ ])?{_VALUE}[.!]?\Z",
    re.IGNORECASE,
)
_FIRST = re.compile(
    rf"{_OPEN}(?:(?P<no>{_NO})|(?P<yes>{_YES}))\b{_CLOSED}(?:[.!][*_`\"]{{0,3}}(?=\s)|\n)", re.I
)
_DENIED = re.compile(
    r"\b(?:incorrect|wrong|differs?|different|but|however|except)\b"
    r"|(?:\bnot|n['\u2019]t) (?:match|equal|correct|right|equivalent|the same)\b",
    re.IGNORECASE,
)
"""Matches words that take back a "correct" at the beginning of an answer."""

_ENDS_A_NUMBER = re.compile(
    r"\Z|[\r\n\[\]<|}(]|[.!;](?!\d)|,(?!\s*(?:\d|or\b|no\b|but\b|says?\b))"
    r"|[-\u2013\u2014]+[ ](?!\d)|(?:because|since|as|points?|stars?|overall)\b(?!\s+minus)",
    re.IGNORECASE,
)
_ENDS_A_WORD = re.compile(
    r"\Z|[\r\n\[\]<|}(.!;,]|[-\u2013\u2014]+[ ]|(?:because|since|as)\b", re.IGNORECASE
)
"""Matches text after a value that does not change it."""
_ENDS_A_LINE = re.compile(r"[.!]?[ \t]*(?:\Z|[\r\n<])")
_CLAUSE = re.compile(r"(?:(?!,\s*[\"'])[^.!;|}<\n]){0,200}")
_LIMITED = re.compile(
    r"\b(?:not|no(?=,)|but|however|except|only|apart|aside|part(?:s|ly|ial|ially)?|almost|nearly|if"
    r"|though|although|until|unless|up to|or|wrong|incorrect|false)\b|n['\u2019]t\b"
    r"|[-=]+>|[\u2192\u21d2?]",
    re.IGNORECASE,
)
"""Matches words in the clause of a "correct" that deny or restrict it."""
_CORRECTED = re.compile(
    r"(?:^|[.!?,][ ]+)(?:hmm*,?[ ]+)?(?:wait|actually|correction|on second thought)\b",
    re.IGNORECASE | re.MULTILINE,
)


@dataclass(frozen=True)
class Scale:
    """The range to which verdicts are mapped."""

    minimum: float
    maximum: float

    def of_number(self, number: float, largest: float | None) -> float | None:
        """Map a number, out of `largest` if given, to this scale; None if it does not fit."""
        if largest is None or largest == self.maximum:
            return number
        if self.minimum != 0 or largest == 0 or not 0 <= number <= largest:
            return None
        return number / largest * self.maximum

    def of_word(self, positive: bool) -> float:
        """Map a verdict without a number to this scale."""
        return self.maximum if positive else self.minimum


def answer_of(text: str) -> str:
    """Return a model's text without its thinking; empty if that has not ended."""
    answer = behind_thinking(text)
    return "" if BEGIN in answer else answer


def read_verdict(answer: str, scale: Scale) -> float | None:
    """Return the verdict in an answer without thinking, or None; it may be out of the scale's
    bounds."""
    text = _QUOTED_LINE.sub("", _FENCED.sub(_without_code, answer.strip()))
    text = _QUOTED.sub(_without_quotes, text).strip()
    # Named verdicts decide, the last final one before all others; else brackets and single lines.
    if named := [m for m in _NAMED.finditer(text) if not _begins_a_text(m)]:
        final = [m for m in named if _FINAL.search(m[0])]
        return _agreed(final[-1:] or named, scale)
    bracketed = list(_IN_BRACKETS.finditer(text))[-1:]
    return _agreed([*bracketed, *filter(None, (_FIRST.match(text), _LAST.search(text)))], scale)


def _agreed(places: Sequence[re.Match[str]], scale: Scale) -> float | None:
    """Return the one value that all places have, or None."""
    values = {_value(match, scale) for match in places}
    return values.pop() if len(values) == 1 else None


def _begins_a_text(named: re.Match[str]) -> bool:
    """Whether an apparent value on the line below a name begins a text, or a list."""
    is_below = "\n" in (named["gap"] or "")
    return is_below and not _ENDS_A_LINE.match(named.string, named.end())


def _without_code(block: re.Match[str]) -> str:
    """Replace a block, which is quoted, unless it is JSON or the whole answer."""
    is_whole = len(block[0]) == len(block.string)
    return block["inside"] if is_whole or _JSON.match(block["inside"]) else _IN_PLACE_OF_A_QUOTE


def _without_quotes(quoted: re.Match[str]) -> str:
    """Replace a quoted text unless it is a key of JSON, the value of a verdict or the whole
    answer."""
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
    """Return the value of a verdict; None if the text after it changes or continues it."""
    groups = match.groupdict()
    if match.re is _FIRST:
        is_denied = groups["yes"] and _DENIED.search(match.string, match.end())
        return None if is_denied else scale.of_word(groups["no"] is None)
    if not _is_clear(match):
        return None
    if groups["number"] is None:
        return scale.of_word(groups["no"] is None)
    largest = 100.0 if groups["percent"] else float(groups["scale"] or 0) or None
    return scale.of_number(float(groups["number"]), largest)


def _is_clear(match: re.Match[str]) -> bool:
    text, place = match.string, match.end()
    ends = _ENDS_A_NUMBER if match["number"] else _ENDS_A_WORD
    if not ends.match(text, place) or _CORRECTED.search(text, place - 1):
        return False
    clause = _CLAUSE.match(text, place)
    return match["yes"] is None or clause is None or _LIMITED.search(clause[0]) is None
