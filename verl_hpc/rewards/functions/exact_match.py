"""Score texts that must be equal."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from verl_hpc.errors import RewardError


def exact_match(solution_str: str, ground_truth: Any) -> float:
    """Return 1 for equality, except for blanks at the ends, else 0.

    Raises:
        RewardError: the ground truth is blank, so that a response of nothing would be right, or a
            list or mapping, which no response could be.
    """
    if ground_truth is None:
        raise RewardError("the row has no ground_truth to compare with")
    truth = str(ground_truth).strip()
    several = isinstance(ground_truth, Collection) and not isinstance(ground_truth, str)
    if not truth or several:
        raise RewardError(
            f"ground_truth = {ground_truth!r:.100} is no answer that a response could be; "
            "exact_match needs a text or a number"
        )
    return float(solution_str.strip() == truth)
