"""The reward of verl's digit completion: a number for each token of the response.

A prompt `a,b:m,n` asks for the next n numbers of the sequence that begins with a and b and goes on
by (b - a) mod m, each mod m, joined by commas. Tokens are characters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.verl_arithmetic.set_up import CHARACTERS, END


def right_answer(question: str) -> str:
    """What completes a prompt."""
    first, second, modulus, count = map(int, question.replace(":", ",").split(","))
    step = (second - first) % modulus
    return ",".join(str((second + (i + 1) * step) % modulus) for i in range(count))


def score(
    response_ids: Sequence[int], prompt: Sequence[Mapping[str, str]], **_: Any
) -> list[float]:
    """1 / (length of the right answer + 1) for each character before the first wrong one.

    The end of the response earns what the character before it has earned, so that an answer that
    is right to its end earns 1. Where the right answer is empty, so does the end alone.
    """
    right = right_answer(prompt[-1]["content"])
    written = [CHARACTERS[token] for token in response_ids if CHARACTERS[token] != END]
    earned = [0.0] * len(written)
    for place, (character, wanted) in enumerate(zip(written, right, strict=False)):
        if character != wanted:
            break
        earned[place] = 1 / (len(right) + 1)
    at_the_end = earned[-1] if earned else float(not right)
    return earned + [at_the_end] * (len(response_ids) - len(written))
