"""The response is the ground truth, character for character."""

from __future__ import annotations

from typing import Any

from verl_hpc.errors import RewardError


def compute_score(
    data_source: str,  # noqa: ARG001
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001
) -> float:
    """1 for equality, blanks at the ends aside; else 0.

    Raises:
        RewardError: the row has no ground truth.
    """
    if ground_truth is None:
        raise RewardError("the row has no ground_truth to compare with")
    return float(solution_str.strip() == str(ground_truth).strip())
