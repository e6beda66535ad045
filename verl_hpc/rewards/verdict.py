"""The verdict in a judge's answer: a number on a scale, or a word such as correct.

Four kinds of places are read, and the first that there is counts:

1. marked verdicts, of which the last counts: `Score: 7`, `"rating": 7`, `[[7]]`,
   `<score>7</score>`, `Verdict: not correct`; those of a total or a final score before others;
2. a verdict alone on its line or in its sentence, of which the last counts;
3. `\\boxed{7}` at the end;
4. prose, such as "gives it a score of 7" or "is not correct", and the last box, which may be quoted
   from what is judged: here all must agree, and no prose may be denied, a condition or about
   something else.

Where none is found, or prose does not agree, there is no verdict: a number that happens to be in an
answer is never taken for one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_hpc.rewards.denials import denied_after
from verl_hpc.rewards.thinking import BEGIN, behind_thinking

_QUOTED = re.compile(
    r'"(?:\\.|[^"\\\n]){0,500}"|“[^”“\n]{0,500}”|^[ \t]*>.*$'
    r"|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`(?=[ ]+\w)",
    re.MULTILINE,
)
_SHORT = 24
"""Characters of a quoted text that may be a value, such as "not correct"."""

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_YES = r"correct|right|yes|true|pass(?:ed)?|equivalent|success(?:ful)?"
_NO = rf"incorrect|wrong|no|false|fail(?:ed|ure)?|unsuccessful|not[ _]+(?:a[ ])?(?:{_YES})"
_PARTLY = (
    r"(?![ ]*(?:/|\||,?[ ]*(?:or|and|but|except|only|approach|reasoning|idea|method|errors?|"
    r"issues?|mistakes?|problems?|answer|result|until|if)\b))"
)
"""What behind a word makes it one of several, or the verdict on a part."""
_VALUE = (
    rf"(?:(?P<number>{_NUMBER})(?![\d\w]|[.,]\d|[ ]*[-+*\u2013~][ ]*\d|[ ]+(?:to|or|and)[ ]+\d"
    r"|[ ]*\?|[ ]+(?:would|points?[ ]minus)\b)"
    r"(?:[*_\])]{0,3}[ ]*(?:/|out[ ]of)[ *_\[(]{0,3}(?P<scale>\d{1,9}(?:\.\d{1,9})?)(?![\d\w]|\.\d)"
    r"|[ ]*(?P<percent>%))?"
    rf"|(?P<no>{_NO})\b{_PARTLY}|(?P<yes>{_YES})\b{_PARTLY})"
)
_NAMES = (
    r"(?:score|rating|grade|verdict|judge?ment|decision|conclusion|evaluation|mark|total|result"
    r"|correctness|correct)"
)
_OPEN = r"[\s\"'*_`\[({]{0,8}"
_MARKED = re.compile(
    rf"(?P<before>(?:[a-z]{{1,16}}[ _]){{0,2}})(?<![a-z]){_NAMES}(?:[ ]*\([^)\n]{{0,40}}\))?"
    rf"(?:[ ]*[\"'*_`\])>]{{0,5}}[ ]*(?::|=)|[\]>]){_OPEN}{_VALUE}"
    rf"|\[\[[ ]*{_VALUE.replace('?P<', '?P<b_')}[ ]*\]\]",
    re.IGNORECASE,
)
_BOXED = re.compile(rf"boxed[ ]*\{{(?:\\text\{{)?[ ]*{_VALUE}", re.IGNORECASE)
_BEHIND_A_BOX = re.compile(r"[\s}$.*_`)\]\\]*")
_ALONE = re.compile(
    rf"^[\s\"'*_`(#]{{0,8}}(?:-[ ]+)?[*_]{{0,3}}{_VALUE}[ \"'*_`).!]{{0,8}}$"
    rf"|(?:^|[.!?][ ]+){_OPEN}(?:(?P<b_no>{_NO})|(?P<b_yes>{_YES}))[*_`\"']{{0,4}}[.!](?=\s|$)",
    re.IGNORECASE | re.MULTILINE,
)
_PROSE = re.compile(
    rf"(?P<before>(?:[a-z]{{1,16}}[ ]){{0,2}})(?<![a-z]){_NAMES}[ ]+(?:is|of|was){_OPEN}{_VALUE}"
    rf"|\b(?:give|rate|assign|award|deserve|get|earn|receive)s?\b[^.\n\d]{{0,40}}?{_OPEN}"
    rf"{_VALUE.replace('?P<', '?P<b_')}"
    rf"|\b(?:is|are|was|isn't|aren't|wasn't)[ ](?P<adverb>(?:[a-z]{{1,16}}[ ]){{0,2}}?)"
    r"(?P<said>correct|incorrect|right|wrong|equivalent)\b",
    re.IGNORECASE,
)
_CLAUSE = 80
_OPEN_CLAUSE = re.compile(
    r"\b(?:not|never|cannot|nobody|(?<!\bI )would|could|might|should|if|unless|nearly|almost|"
    r"perfect|false|wrong)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_BOUNDS = {"maximum", "max", "highest", "best", "full", "perfect", "possible", "minimum", "lowest"}
_FINAL = {"final", "overall", "total"}
_SURE = {
    "also",
    "therefore",
    "thus",
    "indeed",
    "completely",
    "fully",
    "entirely",
    "clearly",
    "hence",
}


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
    text = _QUOTED.sub(_without_long_quotes, answer)
    marked = [m for m in _MARKED.finditer(text) if _words(m).isdisjoint(_BOUNDS)]
    final = [m for m in marked if _is_final(m)]
    boxed = [*_BOXED.finditer(text)][-1:]
    last = [box for box in boxed if _BEHIND_A_BOX.fullmatch(text, box.end())]
    for places in (final, marked, [*_ALONE.finditer(text)], last):
        if places:
            return _value(places[-1], scale)
    prose = [m for m in _PROSE.finditer(text) if _words(m).isdisjoint(_BOUNDS)]
    return _agreed([*prose, *boxed], scale)


def _without_long_quotes(quoted: re.Match[str]) -> str:
    """A verdict that is quoted is another's, such as an example of the prompt."""
    text = quoted[0]
    is_key_or_value = text.startswith('"') and len(text) <= _SHORT and not set(":=") & set(text)
    return text if is_key_or_value else " "


def _words(match: re.Match[str]) -> set[str]:
    before = match.groupdict().get("before") or ""
    return set(re.split(r"[ _]+", before.lower()))


def _is_final(match: re.Match[str]) -> bool:
    named = match[0].lower().lstrip().startswith("total")
    return named or not _words(match).isdisjoint(_FINAL)


def _agreed(matches: list[re.Match[str]], scale: Scale) -> float | None:
    """The one value that all say; None where one says another, or leaves it open."""
    values = {None if _is_open(match) else _value(match, scale) for match in matches}
    return values.pop() if len(values) == 1 else None


def _is_open(match: re.Match[str]) -> bool:
    """Whether a clause denies what it says, or says it of something that is not judged."""
    before = match.string[max(0, match.start() - _CLAUSE) : match.start()]
    clause = re.split(r"[.;:!?\n]", before)[-1]
    return bool(_OPEN_CLAUSE.search(clause)) or denied_after(match.string, match.end())


def _value(match: re.Match[str], scale: Scale) -> float | None:
    found = {name: text for name, text in match.groupdict().items() if text is not None}
    if "said" in found:
        return _said(match[0], found["adverb"], found["said"], scale)
    value = {name.split("_")[-1]: text for name, text in found.items()}
    if "number" not in value:
        return scale.of_word("no" not in value)
    largest = 100.0 if "percent" in value else float(value.get("scale", 0)) or None
    verb = match.re is _PROSE and "b_number" in found
    # Gets 3 right; gets 3 out of 5 steps right.
    if verb and largest != scale.maximum:
        return None
    return scale.of_number(float(value["number"]), largest)


def _said(text: str, adverbs: str, word: str, scale: Scale) -> float | None:
    """The value of prose such as "is not correct"; None where an adverb leaves it open."""
    words = set(adverbs.lower().split())
    negated = "not" in words or "n't" in text.lower()
    if not negated and words - _SURE:
        return None  # partly correct
    positive = word.lower() in ("correct", "right", "equivalent")
    return scale.of_word(positive != negated)
