"""The verdict in a judge's answer: a number on a scale, or a word such as correct.

Four kinds of places are read, and the first that there is counts:

1. marked verdicts, of which the last counts: `Score: 7`, `"rating": 7`, `[[7]]`,
   `<score>7</score>`, `Verdict: not correct`; those that are final or overall before others;
2. a verdict alone on its line or in its sentence, of which the last counts;
3. `\\boxed{7}` at the end;
4. scores of one aspect, such as `Style score: 7`, prose, such as "gives it a score of 7" or "is not
   correct", and the last box, which may be quoted from what is judged: here all must agree, and no
   prose may be denied, a condition or about something else.

What is quoted, or what another "says" or "asks for", is no verdict. Where none is found, or what is
found is unclear, there is no verdict: a number that happens to be in an answer is never taken for
one.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from verl_hpc.rewards.denials import denied_after
from verl_hpc.rewards.thinking import BEGIN, behind_thinking

_FENCED = re.compile(
    r"(```|~~~)[^`~\n]{0,80}\n(?P<inside>[\s\S]*?)(?:^[ \t]*\1[`~]*|\Z)", re.MULTILINE
)
_JSON = re.compile(r"\s*\{\s*[\"}]")
_QUOTED = re.compile(
    r'(?<!\\)"(?:\\.|[^"\\\n])*+"|“[^”“\n]*+”|^[ \t]*>.*$'
    r"|(?<!\w)'[^'\n]{1,200}'(?!\w)|`[^`\n]{1,200}`",
    re.MULTILINE,
)
_IN_PLACE_OF_A_QUOTE = "\u2026"
_SHORT = 24
"""Characters of a quoted text that may be a value, such as "not correct"."""
_KEY = re.compile(r"[ \t]*:")

_NUMBER = r"-?\d{1,9}(?:\.\d{1,9})?"
_YES = r"correct|right|yes|true|pass(?:ed)?|equivalent|success(?:ful)?"
_NO = rf"incorrect|wrong|no|false|fail(?:ed|ure)?|unsuccessful|not[ _]+(?:a[ ])?(?:{_YES})"
_PARTLY = (
    r"(?![ ]{0,8}(?:/|\||,?[ ]{0,8}(?:or|and|but|except|only|approach|reasoning|idea|method|"
    r"errors?|issues?|mistakes?|problems?|answer|result|until|if)\b))"
)
"""What behind a word makes it one of several, or the verdict on a part."""
_VALUE = (
    rf"(?:(?P<number>{_NUMBER})(?![\d\w]|[.,]\d|[ ]*[-+*\u2013~][ ]*\d|[ ]+(?:to|or|and)[ ]+\d"
    r"|[ ]*\?|[ ]+(?:would|points?[ ]minus)\b)"
    r"(?:[*_\])]{0,3}[ ]{0,8}(?:/|out[ ]of)"
    r"[ *_\[(]{0,3}(?P<scale>\d{1,9}(?:\.\d{1,9})?)(?![\d\w]|\.\d)"
    r"|[ ]*(?P<percent>%))?"
    rf"|(?P<no>{_NO})\b{_PARTLY}|(?P<yes>{_YES})\b{_PARTLY})"
)
_NAMES = (
    r"(?:score|rating|grade|verdict|judge?ment|decision|conclusion|evaluation|mark"
    r"|correctness|correct)"
)
_SIGNS = r"\u2705\u2714\u2611\u274c\u2716\u2717\u2718\ufe0f"
"""Ticks and crosses, which stand around a word."""
_OPEN = rf"[\s\"'*_`\[({{{_SIGNS}]{{0,8}}"
_MARK = (
    rf"(?P<before>(?:[a-z]{{1,16}}[ _-]){{0,2}})(?<![a-z])(?P<name>{_NAMES}|total|overall)"
    r"(?:[ ]?\([^)\n]{0,40}\))?(?:[ ]{0,4}[\"'*_`\])>]{0,5}[ ]{0,4}(?::|=)|[\]>])"
)
_MARKED = re.compile(
    rf"(?:{_MARK}|\[result\]){_OPEN}{_VALUE}"
    rf"|\[\[[ ]*{_VALUE.replace('?P<', '?P<b_')}[ ]*\]\]",
    re.IGNORECASE,
)
_LEADS_TO_A_VALUE = re.compile(rf"(?:{_MARK}|\b(?:is|was|of)[ ]){_OPEN}\Z", re.IGNORECASE)
_CLOSED = rf"[ \t]{{0,8}}[\"'*_`\])}}{_SIGNS}]{{0,8}}[ \t]{{0,8}}"
_LEADS_ON = re.compile(
    rf"{_CLOSED}(?:[-=]+>|[=\u2192\u21d2\u00d7]|x[ ]*\d|(?:is|was|should|seems?|needs?|requires?"
    r"|minus|plus|times)\b|[-\u2013\u2014,(]*[ ]*(?:no|wait|actually|corrected|changed|reduced)\b)",
    re.IGNORECASE,
)
"""What stands behind a number and makes it another one, or says that it is none."""
_ENDS = rf"{_CLOSED}(?:\Z|[\r\n;}}\]<|]|[.!](?![.=])|,\s*(?:[\"'\n]|\w{{1,24}}[\"']?[ ]*[:=]))"
_SINCE = r"\b(?:because|since|as(?![ ](?:far|long|if)))\b"
_APART = rf"{_CLOSED}(?:[,:]|--?(?!>)|[\u2013\u2014])[ \t]{{0,8}}"
_TURNS = r"(?:not?|but|wait|actually|wrong|incorrect|except|only|part(?:ly|ial|ially)|almost|if)\b"
_REASON = (
    r"(?:because|since|as(?![ ](?:far|long|if))|the|both|it|all|they|this|these|match(?:es)?|same"
    r"|identical|equals?|\d{1,9})\b"
)
_ENDS_YES = re.compile(
    rf"{_ENDS}|{_CLOSED}(?:{_SINCE}|{_APART}{_REASON})(?![^.;\n]{{0,200}}?\b{_TURNS})", re.I
)
_ENDS_NO = re.compile(
    rf"{_ENDS}|{_CLOSED}(?:{_SINCE}|{_APART}(?!(?:no|correct|right|yes|{_TURNS})\b))", re.I
)
"""A word is a verdict where its clause ends behind it, or a reason follows."""
_BOXED = re.compile(rf"boxed[ ]*\{{(?:\\text\{{)?[ ]*{_VALUE}", re.IGNORECASE)
_BEHIND_A_BOX = re.compile(r"[\s}$.*_`)\]\\\u2026]*")
_ALONE = re.compile(
    rf"^[\s\"'*_`(\[#]{{0,8}}(?:-[ ]+)?[*_]{{0,3}}{_VALUE}[ \"'*_`)\].!]{{0,8}}$"
    rf"|(?:^|[.!?][ ]+){_OPEN}(?:(?P<b_no>{_NO})|(?P<b_yes>{_YES}))[*_`\"']{{0,4}}[.!](?=\s|$)",
    re.IGNORECASE | re.MULTILINE,
)
_PROSE = re.compile(
    rf"(?P<before>(?:[a-z]{{1,16}}[ _-]){{0,2}})(?<![a-z]){_NAMES}[ ]+(?:is|of|was){_OPEN}{_VALUE}"
    rf"|\b(?:give|rate|assign|award|deserve|get|earn|receive)s?\b[^.\n\d]{{0,40}}?{_OPEN}"
    rf"{_VALUE.replace('?P<', '?P<b_')}"
    rf"|\b(?:is|are|was|isn't|aren't|wasn't)[ ]{_OPEN}(?P<adverb>(?:[a-z]{{1,16}}[ ]){{0,2}}?)"
    r"(?P<said>correct|incorrect|right|wrong|equivalent)\b"
    r"(?![ ](?:that|to|up|in|for|only|if|when|about|as)\b)",
    re.IGNORECASE,
)
_OWNER = r"(?:student|model|candidate|assistant|response)['\u2019]s"
_SUBJECT = re.compile(
    r"(?<!\bof )(?<!\bof the )(?<![\w'\u2019-])"
    rf"(?:(?:the|this|its|his|her|their|your|{_OWNER})[ ]"
    rf"(?:(?:{_OWNER}|final|whole|given)[ ]){{0,2}}"
    r"(?:answer|response|solution|result)(?:[ ]of[ ]the[ ](?:student|response))?"
    r"|the[ ](?:student|model|candidate)|it|this)[ ]\Z",
    re.IGNORECASE,
)
"""What is judged; another thing that is correct is no verdict."""
_PAIR = re.compile(r"\b(?:they|answers|expressions|values)[ ]\Z", re.IGNORECASE)
_CLAUSE = 80
_OPEN_CLAUSE = re.compile(
    r"\b(?:not|never|cannot|nobody|(?<!\bI )would|could|might|should|if|unless|nearly|almost|"
    r"perfect|false|wrong|refuse[ds]?|doubt|to[ ](?:get|earn|reach|receive|achieve))\b"
    r"|\bto[ ]*\Z|n['\u2019]t\b",
    re.IGNORECASE,
)
_OPEN_SENTENCE = re.compile(
    r"\b(?:neither|none|nothing|nobody|doubts?|refuse[ds]?|except|but|apart|aside)\b", re.IGNORECASE
)
_OTHERS = (
    r"\b(?:said|says?|wr(?:ote|ites?|itten)|stat(?:es|ed)"
    r"|(?:ask|claim|contain|demand|instruct|request)(?:s|ed)?)\b"
)
_SAID_BEFORE = re.compile(_OTHERS, re.IGNORECASE)
_SAID_BEHIND = re.compile(rf"{_CLOSED},?[ ](?:it[ ])?{_OTHERS}", re.IGNORECASE)
_CLAUSE_ENDS = re.compile(r"[.!?;](?=\s)|(?<![:,\s])\s*\n|,\s*(?=\")")
_BOUNDS = {
    *("maximum", "max", "highest", "best", "full", "perfect", "possible", "minimum", "lowest"),
    *("top", "ideal", "potential", "reference", "expected", "target", "passing", "not"),
    *("self", "claimed", "requested", "desired"),
}
_FINAL = {"final", "overall"}
_PLAIN = {
    *("", "the", "a", "my", "this", "its", "your", "their", "his", "her", "s", "so", "and", "is"),
    *("answer", "response", "student", "numeric", "total"),
}
"""What leaves a name what it is; another word before it makes it the score of an aspect."""
_OWNERS = {"s", "student", "its", "their", "his", "her"}
_STATED = {"conclusion", "decision", "verdict", "judgement", "judgment", "evaluation"}
"""What a student may have, too."""
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
    text = _QUOTED.sub(_without_quotes, _FENCED.sub(_without_code, answer.strip()))
    ranked: dict[str, list[re.Match[str]]] = {"final": [], "plain": [], "correctness": []}
    aspects: list[re.Match[str]] = []
    for match in _own(_MARKED, text):
        ranked.get(_rank(match), aspects).append(match)
    for places in ranked.values():
        if places:
            return _last(places, scale)
    prose = [m for m in _PROSE.finditer(text) if _words(m).isdisjoint(_BOUNDS)]
    if alone := _own(_ALONE, text):
        return _not_contradicted(alone[-1], prose, scale)
    boxed = _own(_BOXED, text)[-1:]
    if boxed and _BEHIND_A_BOX.fullmatch(text, boxed[0].end()):
        return _value(boxed[0], scale)
    return _agreed([*aspects, *prose, *boxed], scale)


def _without_code(block: re.Match[str]) -> str:
    """A block is quoted, but for one that is JSON or the whole answer."""
    is_whole = len(block[0]) == len(block.string)
    return block["inside"] if is_whole or _JSON.match(block["inside"]) else _IN_PLACE_OF_A_QUOTE


def _without_quotes(quoted: re.Match[str]) -> str:
    """A verdict that is quoted is another's, such as an example of the prompt."""
    text = quoted[0]
    if text.lstrip().startswith(">"):
        return _IN_PLACE_OF_A_QUOTE
    if len(text) == len(quoted.string):
        return text
    is_kept = len(text) <= _SHORT and not set(":=[") & set(text) and _is_key_or_value(quoted)
    return text if is_kept else _IN_PLACE_OF_A_QUOTE


def _is_key_or_value(quoted: re.Match[str]) -> bool:
    """Whether it is a key of JSON, or stands where the value of a verdict does."""
    if quoted[0].startswith('"') and _KEY.match(quoted.string, quoted.end()):
        return True
    before = quoted.string[max(0, quoted.start() - _CLAUSE) : quoted.start()]
    is_led_to = before.rstrip(" \n\"'*_`[({").endswith((":", "=", "]", ">", "is", "was", "of"))
    return is_led_to and _LEADS_TO_A_VALUE.search(before) is not None


def _own(pattern: re.Pattern[str], text: str) -> list[re.Match[str]]:
    """The places that are the judge's own verdicts on what is judged."""
    return [m for m in pattern.finditer(text) if not _is_of_another(m)]


def _is_of_another(match: re.Match[str]) -> bool:
    """Whether it is a bound of the scale, or what the response or its author states."""
    words = _words(match)
    is_stated = match.groupdict().get("name") is not None and match["name"].lower() in _STATED
    is_theirs = is_stated and not words.isdisjoint(_OWNERS)
    return is_theirs or not words.isdisjoint(_BOUNDS) or _is_said(match)


def _is_said(match: re.Match[str]) -> bool:
    """The response says: Score: 10; 'Score: 10', it says."""
    place = min(match.start(name) for name in _found(match) if name not in ("before", "name"))
    before = match.string[max(0, place - _CLAUSE) : place]
    clause = _CLAUSE_ENDS.split(before)[-1]
    behind = _SAID_BEHIND.match(match.string, match.end())
    return _SAID_BEFORE.search(clause) is not None or behind is not None


def _words(match: re.Match[str]) -> set[str]:
    before = match.groupdict().get("before") or ""
    return set(re.split(r"[ _-]+", before.lower()))


def _found(match: re.Match[str]) -> dict[str, str]:
    return {name: text for name, text in match.groupdict().items() if text is not None}


def _rank(match: re.Match[str]) -> str:
    name, words = (match["name"] or "").lower(), _words(match)
    if words - _PLAIN - _FINAL:
        return "aspect"
    if name == "overall" or not words.isdisjoint(_FINAL):
        return "final"
    return "correctness" if name == "correctness" else "plain"


def _is_total(match: re.Match[str]) -> bool:
    """A total may be the sum of scores, but also what could be had."""
    return (match["name"] or "").lower() == "total" or "total" in _words(match)


def _last(places: list[re.Match[str]], scale: Scale) -> float | None:
    """The last of marked verdicts; None where it is unclear, or a total is another one."""
    values = [_value(match, scale) if _is_clear(match) else None for match in places]
    is_mixed = len(set(values)) > 1 and any(_is_total(match) for match in places)
    return None if is_mixed else values[-1]


def _is_clear(match: re.Match[str]) -> bool:
    """Whether what stands behind a marked verdict leaves it what it is."""
    found = _found(match)
    if "number" in found or "b_number" in found:
        return not _LEADS_ON.match(match.string, match.end())
    ends = _ENDS_NO if "no" in found or "b_no" in found else _ENDS_YES
    return ends.match(match.string, match.end()) is not None


def _not_contradicted(
    alone: re.Match[str], prose: list[re.Match[str]], scale: Scale
) -> float | None:
    """The value of a verdict alone; None where it is a word, and prose has another one."""
    value = _value(alone, scale)
    judged = [m for m in prose if _is_of_the_answer(m) and not _is_open(m)]
    others = {_value(m, scale) for m in judged} - {None, value}
    return value if "number" in _found(alone) or not others else None


def _agreed(matches: list[re.Match[str]], scale: Scale) -> float | None:
    """The one value that all say; None where one says another, or leaves it open."""
    values = {None if _is_open(match) else _value(match, scale) for match in matches}
    is_judged = any(_is_of_the_answer(match) for match in matches)
    return values.pop() if is_judged and len(values) == 1 else None


def _is_of_the_answer(match: re.Match[str]) -> bool:
    """Whether something that is said to be correct is what is judged, not a step or an option."""
    said = match.groupdict().get("said")
    if said is None:
        return True
    before = match.string[max(0, match.start() - _CLAUSE) : match.start()]
    is_pair = said.lower() == "equivalent" and _PAIR.search(before) is not None
    return is_pair or _SUBJECT.search(before) is not None


def _is_open(match: re.Match[str]) -> bool:
    """Whether a clause denies what it says, or says it of something that is not judged."""
    before = match.string[max(0, match.start() - _CLAUSE) : match.start()]
    clause = re.split(r"[.;:!?\n]", before)[-1] + (_found(match).get("before") or "")
    if _OPEN_CLAUSE.search(clause) or _is_said(match) or denied_after(match.string, match.end()):
        return True
    return match.groupdict().get("said") is not None and _is_in_an_open_sentence(match, before)


def _is_in_an_open_sentence(match: re.Match[str], before: str) -> bool:
    """Neither is correct; everything is correct except the result."""
    behind = match.string[match.end() : match.end() + _CLAUSE]
    sentence = re.split(r"[.!?\n]", before)[-1] + " " + re.split(r"[.!?\n]", behind)[0]
    return _OPEN_SENTENCE.search(sentence) is not None


def _value(match: re.Match[str], scale: Scale) -> float | None:
    found = _found(match)
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
