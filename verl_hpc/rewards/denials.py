"""Sentences that deny what they name, or make it a condition."""

from __future__ import annotations

import re

_DENIED = re.compile(
    r"\b(?:not|never|neither|no(?! doubt)|wrong|incorrect|false|fails?|eliminate[ds]?|rules? out|"
    r"ruled out|rather than|distractor|if|unless|why|cannot|students?|someone)\b|n['\u2019]t\b|"
    r"\b(?:many|some|others)(?:\s*\Z| (?:would|may|might|say|people|choose|pick)\b)",
    re.IGNORECASE,
)
_NEW_CLAUSE = re.compile(r"[.,;:!?\n]|\b(?:so|but|and|thus|therefore|hence|because|since)\b", re.I)
_PREDICATE = re.compile(
    r"[)\]*]{0,4}\s{1,4}(?:is|was|are|does|would|fails?|cannot|can|has)\b[^.,;:!?\n]{0,60}", re.I
)
_LONGEST_CLAUSE = 80


def denies(sentence: str) -> bool:
    """'(A) is wrong', 'if (A)', 'many choose (A)': what it names is no answer."""
    return _DENIED.search(sentence) is not None


def denied_before(text: str, place: int) -> bool:
    """Whether the clause that leads to this place denies what stands there."""
    before = text[max(0, place - _LONGEST_CLAUSE) : place]
    return denies(_NEW_CLAUSE.split(before)[-1])


def denied_after(text: str, place: int) -> bool:
    """Whether what is said of that which ends at this place denies it: 'B is not supported'."""
    predicate = _PREDICATE.match(text, place)
    return predicate is not None and denies(predicate[0])
