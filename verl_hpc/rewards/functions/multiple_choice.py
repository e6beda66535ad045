r"""Score the letter of an answer among several: '(B)', 'Answer: B', \boxed{B}."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from verl_hpc.errors import RewardError
from verl_hpc.rewards.letters import extract_letter, letter_of_words
from verl_hpc.rewards.request import RewardFunction
from verl_hpc.section import Section

DATA_SOURCES = ("multiple_choice/*",)


class Options(Section):
    """1 for the letter of the right answer, else 0."""

    choices: str = "choices"
    """Column of the row, or field of its extra_info, with the texts of the answers: a list, or a
    mapping from letters. A row without it has letters from A to Z."""


def make(options: Options) -> RewardFunction:
    """Make the reward function."""

    def graded(
        solution_str: str,
        ground_truth: Any,
        extra_info: dict[str, Any] | None = None,
        row: Mapping[str, Any] | None = None,
    ) -> dict[str, float]:
        """Return `score`: 1 for the letter, or the whole text in a box, of the right answer, else
        0.

        `no_answer`, for metrics, is 1 if the response chooses none, else 0.

        Raises:
            RewardError: `ground_truth` is neither a letter, nor a number from 0, nor a text of one
                of the row's answers.
        """
        given = (extra_info or {}).get(options.choices, (row or {}).get(options.choices))
        choices = _by_letter(given, options.choices)
        truth = _letter_of(ground_truth, choices)
        if truth is None:
            known = ", ".join(choices)
            raise RewardError(f"ground_truth = {ground_truth!r:.100} is not one of {known}")
        letter = extract_letter(solution_str, choices)
        return {"score": float(letter == truth), "no_answer": float(letter is None)}

    return graded


def _by_letter(given: Any, name: str) -> dict[str, str]:
    if given is None:
        return dict.fromkeys(ascii_uppercase, "")
    if isinstance(given, Mapping) and given:
        # Also two columns of labels and texts, as in ARC.
        labels, texts = given.get("label"), given.get("text")
        if isinstance(labels, list) and isinstance(texts, list):
            given = dict(zip(labels, texts, strict=False))
        return {str(letter).upper(): str(text) for letter, text in given.items()}
    if isinstance(given, Sequence) and not isinstance(given, str) and 0 < len(given) <= 26:
        return dict(zip(ascii_uppercase, map(str, given), strict=False))
    raise RewardError(
        f"{name} = {given!r:.100} are no answers to choose from; expected a list of at most 26, or "
        "a mapping from letters"
    )


def _letter_of(truth: Any, choices: Mapping[str, str]) -> str | None:
    if isinstance(truth, int) and not isinstance(truth, bool):
        return list(choices)[truth] if 0 <= truth < len(choices) else None
    if not isinstance(truth, str):
        return None
    letter = truth.strip().strip("().").upper()
    return letter if letter in choices else letter_of_words(truth, choices)
