"""Sentences that deny what they name, or make it a condition."""

from __future__ import annotations

import re

_DENIED = re.compile(
    r"\b(?:not|never|neither|no(?! doubt)|wrong|incorrect|false|fails?|eliminate[ds]?|rules? out|"
    r"ruled out|rather than|distractor|if|unless|why|cannot|students?|someone|suppos(?:e|ing)|"
    r"assum(?:e|ing)|whether|tempting|refuse|people|(?:might|may|could) think)\b|n['\u2019]t\b|"
    r"\b(?:many|some|others)(?:\s*\Z| (?:would|may|might|say|people|choose|pick)\b)",
    re.IGNORECASE,
)
_NEW_CLAUSE = re.compile(r"[.,;:!?\n]|\b(?:so|but|and|thus|therefore|hence|because|since)\b", re.I)
_PREDICATE = re.compile(
    r"[)\]*]{0,4}\s{1,4}(?:is|was|are|does|would|fails?|cannot|can|has)\b[^.,;:!?\n]{0,60}", re.I
)
_CONDITION = re.compile(r"[^.,;:!?\n]{0,40}\?|\s*,?\s*(?:if|unless|only if)\b", re.IGNORECASE)
_LONGEST_CLAUSE = 80


def denies(sentence: str) -> bool:
    """'(A) is wrong', 'if (A)', 'many choose (A)': what it names is no answer."""
    return _DENIED.search(sentence) is not None


def denied_before(text: str, place: int) -> bool:
    """Whether the clause that leads to this place denies what stands there."""
    before = text[max(0, place - _LONGEST_CLAUSE) : place]
    return denies(_NEW_CLAUSE.split(before)[-1])


def denied_after(text: str, place: int) -> bool:
    """Whether what follows denies what ends at this place, asks for it, or makes it a condition:
    'B is not supported', 'B?', 'B if'."""
    if _CONDITION.match(text, place):
        return True
    predicate = _PREDICATE.match(text, place)
    return predicate is not None and denies(predicate[0])
