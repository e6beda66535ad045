"""Penalise responses by their number of tokens."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from verl_hpc.config.reward_options import LengthOptions
from verl_hpc.rewards.request import RewardFunction


def make(options: LengthOptions) -> RewardFunction:
    """Make a function that gives 0 for a wanted length, down to -1 for others."""

    def compute_score(
        data_source: str,  # noqa: ARG001
        solution_str: str,  # noqa: ARG001
        ground_truth: Any,  # noqa: ARG001
        extra_info: dict[str, Any] | None = None,  # noqa: ARG001
        response_ids: Sequence[int] = (),
    ) -> float:
        return penalty(options, len(response_ids))

    return compute_score


def penalty(options: LengthOptions, length: int) -> float:
    """Return the penalty of `LengthOptions` for `length` tokens, from 0 down to -1."""
    if options.cap is not None:
        buffer = options.buffer or max(options.cap // 4, 1)
        return -min(max((length - (options.cap - buffer)) / buffer, 0.0), 1.0)
    assert options.target is not None
    return -min(abs(length - options.target) / (options.width or options.target), 1.0)
