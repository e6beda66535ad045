"""Score responses of a given form."""

from __future__ import annotations

import re
from typing import Any

from verl_hpc.config.reward_options import FormatOptions
from verl_hpc.rewards.request import RewardFunction


def make(options: FormatOptions) -> RewardFunction:
    """Make a function that gives 1 if the options match a whole response, except white space at its
    ends, else 0."""
    form = re.compile(options.pattern or _of_tags(options.tags), re.DOTALL)

    def compute_score(
        data_source: str,  # noqa: ARG001
        solution_str: str,
        ground_truth: Any,  # noqa: ARG001
        extra_info: dict[str, Any] | None = None,  # noqa: ARG001
    ) -> float:
        return float(any(form.fullmatch(text) for text in (solution_str, solution_str.strip())))

    return compute_score


def _of_tags(tags: list[str]) -> str:
    """Return a pattern with each tag once; no other tag occurs inside a pair of tags."""
    inside = rf"(?:(?!</?(?:{'|'.join(tags)})>).)*"
    return r"\s*".join(f"<{tag}>{inside}</{tag}>" for tag in tags)
