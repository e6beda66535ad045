"""Sentences that deny what they name, or make it a condition."""

from __future__ import annotations

import re

_DENIED = re.compile(
    r"\b(?:not|never|neither|no(?! doubt)|wrong|incorrect|false|fails?|eliminate[ds]?|rules? out|"
    r"ruled out|rather than|distractor|if|unless|why|cannot)\b|n['\u2019]t\b",
    re.IGNORECASE,
)
_NEW_CLAUSE = re.compile(r"[.,;:!?\n]|\b(?:so|but|and|thus|therefore|hence|because|since)\b", re.I)
_LONGEST_CLAUSE = 80


def denies(sentence: str) -> bool:
    """'(A) is wrong', 'if (A)': what it names is no answer."""
    return _DENIED.search(sentence) is not None


def denied_before(text: str, place: int) -> bool:
    """Whether the clause that leads to this place denies what stands there."""
    before = text[max(0, place - _LONGEST_CLAUSE) : place]
    return denies(_NEW_CLAUSE.split(before)[-1])
