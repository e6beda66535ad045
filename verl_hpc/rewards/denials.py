"""Recognise sentences that deny what they name, or make it a condition."""

from __future__ import annotations

import re

_DENIED = re.compile(
    r"\b(?:not|never|neither|no(?! doubt)|wrong|incorrect|false|fails?|eliminate[ds]?|rules? out|"
    r"ruled out|rather than|distractor|if|unless|why|cannot|students?|someone|suppos(?:e|ing)|"
    r"assum(?:e|ing)|let['\u2019]s say|whether|tempting|refuse|people|(?:might|may|could) think|"
    r"impossible|exclude[sd]?|unlikely|least (?:likely|plausible|probable|suitable|correct)|"
    r"(?:i|we)(?: (?:really|strongly|still))? doubt)\b|n['\u2019]t\b|"
    r"\b(?:many|some|others)(?:\s*\Z| (?:would|may|might|say|claim|people|choose|pick)\b)|"
    r"\b(?:(?:they|he|she|(?:text)?books?|teachers?|friends?) (?:say|said|claim|think|thought|"
    r"believe)\w{0,2}|claims) (?:that )?(?:the\b|it\b|\Z)",
    re.IGNORECASE,
)
_NEW_CLAUSE = re.compile(
    r"[.,;:!?\n]|\b(?:so|but|and|thus|therefore|hence|because|since|means|implies|"
    r"(?:is|['\u2019]s) why)\b",
    re.IGNORECASE,
)
_PREDICATE = re.compile(
    r"[)\]*]{0,4}\s{1,4}(?:is|was|are|does|would|fails?|cannot|can|has)\b[^.,;:!?\n]{0,60}", re.I
)
_CONDITION = re.compile(r"[^.,;:!?\n]{0,40}\?|\s*,?\s*(?:if|unless|only if)\b", re.IGNORECASE)
_PAUSE = r"[\s.,:!\u2013\u2014\u2026-]{1,6}"
_LEADS = (
    r"(?:(?:no|but|oh|wait|hm+|oops|sorry|actually|however|hold on|on second thought|on reflection)"
    rf"{_PAUSE}){{0,4}}"
)
_CORRECTION = rf"(?:actually|on second thought|correction|scratch that|sorry|oops|i meant?){_PAUSE}"
_IS_WRONG = (
    r"(?:(?:that|this|it|which)(?:['\u2019]s| is| was)\s)?"
    r"(?:wrong|incorrect|false|a mistake|not (?:right|correct|true))"
    r"(?=\s{0,4}(?:[.,;!)]|$|(?:because|since|as|for)\b))|"
    r"(?:that|this|it) (?:isn['\u2019]t|cannot be|can['\u2019]t be) (?:right|correct|true)\b"
)
_ANOTHER = (
    r"(?:(?:it|that|this|the answer)(?:['\u2019]s| is| must be| should be)\b|"
    r"(?-i:[(*]{0,3}[A-Z](?=[)*]{0,3}\s{0,4}(?:$|[.,;!]))))"
)
_NO = rf"no(?:pe)?(?:(?=\s{{0,4}}(?:[.;!)]|$))|[,:]?\s(?:wait\b|sorry\b|actually\b|{_ANOTHER}))"
_TAKEN_BACK = re.compile(
    r"[)\]}*_`\"$]{0,6}(?:\s{0,4}[,\u2013\u2014-]\s{0,4}no[,.]|\s{0,4}\((?:wait|possibly|maybe|or)\b|"
    r"[\s.,;]{1,4}alternatively,?\s[(*$]{0,3}(?:[a-z]|-?\d+)[)*$]{0,3}\s*(?:[.,;!]|$)|[\s.,;:!(*\u2013\u2014\u2026-]{1,8}"
    rf"{_LEADS}(?:{_IS_WRONG}|{_NO}|{_CORRECTION}{_ANOTHER}))",
    re.IGNORECASE | re.MULTILINE,
)
_LONGEST_CLAUSE = 80


def denies(sentence: str) -> bool:
    """Whether what a sentence names is no answer: '(A) is wrong', 'if (A)', 'many choose (A)'."""
    return _DENIED.search(sentence) is not None


def denied_before(text: str, place: int) -> bool:
    """Whether the clause that leads to this place denies the text there."""
    before = text[max(0, place - _LONGEST_CLAUSE) : place]
    return denies(_NEW_CLAUSE.split(before)[-1])


def denied_after(text: str, place: int) -> bool:
    """Whether the text after this place denies the one before, asks for it, or makes it a
    condition: 'B is not supported', 'B?', 'B if'."""
    if _CONDITION.match(text, place):
        return True
    predicate = _PREDICATE.match(text, place)
    return predicate is not None and denies(predicate[0])


def taken_back(text: str, place: int) -> bool:
    """Whether the text after this place takes back the one before: 'B. That is wrong', 'B, no,
    C'."""
    return _TAKEN_BACK.match(text, place) is not None
