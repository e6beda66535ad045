"""One reward for both programs: how many different characters a completion has.

It says nothing of quality; it differs between samples, so that advantages and gradients are real.
"""

from __future__ import annotations

from typing import Any


def score(data_source: str, solution_str: str, ground_truth: Any, extra_info: Any) -> float:
    """As verl_hpc calls it."""
    del data_source, ground_truth, extra_info
    return len(set(solution_str)) / max(len(solution_str), 1)


def scores(completions: list[str], **_: Any) -> list[float]:
    """As TRL calls it."""
    return [score("", text, None, None) for text in completions]
