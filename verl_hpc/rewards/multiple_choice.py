r"""The letter of an answer among several: '(B)', 'Answer: B', \boxed{B}."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any

from verl_hpc.config.reward_options import MultipleChoiceOptions
from verl_hpc.errors import RewardError
from verl_hpc.rewards.request import RewardFunction

_WRAPPED = r"[\s$*_]*(?:\\(?:text|mathrm|mathbf|textbf)\{)?[\s(\[]*"
"""What may stand between a mark and the answer."""
_LETTER = r"([A-Za-z0-9])(?![A-Za-z0-9'])"
_MARKS = (
    r"\\boxed\{" + _WRAPPED + _LETTER,
    r"<answer>" + _WRAPPED + _LETTER,
    r"(?:answer|choice|option)(?:\s+is)?\s*:?" + _WRAPPED + _LETTER,
    r"\(\s*([A-Z0-9])\s*\)",
    r"^[\s*]*([A-Z0-9])[\s*.):]*$",
)
"""Where a letter is an answer, the surest first; of each the last one in a response counts."""
_PATTERNS = [re.compile(mark, re.I | re.M) for mark in _MARKS[:3]]
_PATTERNS += [re.compile(mark, re.M) for mark in _MARKS[3:]]
_BOX = re.compile(r"\\boxed\{([^{}]*)\}|<answer>(.*?)</answer>", re.DOTALL)


def make(options: MultipleChoiceOptions) -> RewardFunction:
    """The reward function."""

    def compute_score(
        data_source: str,  # noqa: ARG001
        solution_str: str,
        ground_truth: Any,
        extra_info: dict[str, Any] | None = None,
        row: Mapping[str, Any] | None = None,
    ) -> float:
        """1 for the letter, or the whole text in a box, of the right answer; else 0.

        Raises:
            RewardError: `ground_truth` is neither a letter, nor a number from 0, nor a text of one
                of the row's answers.
        """
        given = (extra_info or {}).get(options.choices, (row or {}).get(options.choices))
        choices = _by_letter(given, options.choices)
        truth = _letter_of(ground_truth, choices)
        if truth is None:
            known = ", ".join(choices)
            raise RewardError(f"ground_truth = {ground_truth!r:.100} is none of {known}")
        return float(extract_letter(solution_str, choices) == truth)

    return compute_score


def extract_letter(response: str, choices: Mapping[str, str]) -> str | None:
    """The letter that a response answers, or None.

    Args:
        response: of the model.
        choices: texts of the answers by letter; empty texts where they are not known.
    """
    for box, tagged in reversed(_BOX.findall(response)):
        if (letter := _letter_of_text(box or tagged, choices)) is not None:
            return letter
    for pattern in _PATTERNS:
        letters = [found.upper() for found in pattern.findall(response)]
        known = [letter for letter in letters if letter in choices]
        if known:
            return known[-1]
    return None


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
    return letter if letter in choices else _letter_of_text(truth, choices)


def _letter_of_text(text: str, choices: Mapping[str, str]) -> str | None:
    plain = " ".join(text.split()).casefold()
    same = [k for k, choice in choices.items() if " ".join(choice.split()).casefold() == plain]
    return same[0] if plain and len(same) == 1 else None
