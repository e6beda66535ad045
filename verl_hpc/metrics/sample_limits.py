"""Limits of the samples that a run keeps of prompts and responses."""

from __future__ import annotations

from collections.abc import Collection, Sequence

MAX_GROUPS = 4
"""Most prompts that are kept of a step's training, and as many of its evaluation."""
MAX_RESPONSES = 8
"""Most responses that are kept for one prompt."""
MAX_CHARACTERS = 4000
"""Most characters of a text; a longer one keeps its two ends, and a note of what was cut."""
MAX_STEPS = 50
"""Most files, one per step. Together they have at most 2 x 4 x (2 + 8) x 4,000 x 50 = 16 million
characters of text, which is 16 MB in English and 192 MB if every one were written in 12 bytes, as
an emoji is."""
NEWEST_STEPS = 10
"""Newest steps, which are never thinned out."""
_ROOM = 60
"""Characters for the note of what was cut."""


def surplus(steps: Sequence[int], evaluated: Collection[int] = ()) -> list[int]:
    """Return the steps to forget if there are more than `MAX_STEPS`, in order.

    The first step and the `NEWEST_STEPS` last stay; of the others those go that leave the smallest
    gaps, steps with an evaluation after all others, and the newest of these last.
    """
    newest_evaluated = max(evaluated, default=None)
    kept, gone = list(steps), []

    def worth(i: int) -> tuple[bool, bool, int]:
        step = kept[i]
        return step in evaluated, step == newest_evaluated, kept[i + 1] - kept[i - 1]

    # Drop the step of least worth, never the first or one of the newest.
    while len(kept) > MAX_STEPS:
        gone.append(kept.pop(min(range(1, len(kept) - NEWEST_STEPS), key=worth)))
    return gone


def cut(text: str) -> str:
    """Return at most `MAX_CHARACTERS` of a text: its two ends, and between them how much is left
    out."""
    if len(text) <= MAX_CHARACTERS:
        return text
    half = (MAX_CHARACTERS - _ROOM) // 2
    return f"{text[:half]}\n[... {len(text) - 2 * half:,} characters cut ...]\n{text[-half:]}"
