"""Score answers that are right as text or as mathematics: accuracy_reward of verl's tutorials."""

from __future__ import annotations

from typing import Any

from verl_hpc.rewards import exact_match, math_reward


def compute_score(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float:
    """Return 1 if `exact_match` or `math` gives 1, else 0.

    Raises:
        RewardError: the row has no ground truth.
    """
    given = data_source, solution_str, ground_truth, extra_info
    return exact_match.compute_score(*given) or math_reward.compute_score(*given)
