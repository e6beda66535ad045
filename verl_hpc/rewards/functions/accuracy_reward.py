"""Score answers that are equal, as texts or as formulas."""

from __future__ import annotations

from typing import Any

from verl_hpc.rewards.functions.exact_match import exact_match
from verl_hpc.rewards.functions.math import compute_score


def accuracy_reward(solution_str: str, ground_truth: Any) -> float:
    """Return 1 if `exact_match` or `math` gives 1, else 0: accuracy_reward of verl's tutorials.

    Raises:
        RewardError: the row has no ground truth.
    """
    given = solution_str, ground_truth
    return exact_match(*given) or compute_score(*given)
