"""Whether an answer is right, as text or as mathematics: verl's tutorials' accuracy_reward."""

from __future__ import annotations

from typing import Any

from verl_hpc.rewards import exact_match, math_reward


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
) -> float:
    """1 where `exact_match` or `math` says so; else 0.

    Raises:
        RewardError: the row has no ground truth.
    """
    given = data_source, solution_str, ground_truth, extra_info
    return exact_match.compute_score(*given) or math_reward.compute_score(*given)
