"""The scorer that a reasoning-gym task brings."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from typing import Any

from verl_hpc.errors import RewardError
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

PREFIX = "reasoning_gym/"


def compute_score(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    timeout_s: float = 5.0,
) -> float:
    """The task's own score of what <answer> tags enclose, or of the whole response.

    An answer that the task cannot read, or not in `timeout_s` seconds, scores 0.

    Args:
        data_source: reasoning_gym/TASK.
        extra_info: reasoning-gym's entry, and under `options` the task's settings.

    Raises:
        RewardError: `data_source` names no task.
    """
    from reasoning_gym.utils import extract_answer

    extra = extra_info or {}
    entry = {"answer": ground_truth, **extra}
    score = _scorer(data_source, json.dumps(extra.get("options") or {}))
    tagged = extract_answer(solution_str)
    answer = solution_str.strip() if tagged is None else tagged
    try:
        with time_limit(timeout_s):
            return float(score(answer, entry))
    except TimeLimitExceeded:
        return 0.0
    except Exception:
        # Where the right answer raises too, the entry is at fault and not the response.
        score(entry["answer"], entry)
        return 0.0


@cache
def _scorer(data_source: str, options: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym.factory import DATASETS, create_dataset

    task = data_source.removeprefix(PREFIX)
    if task not in DATASETS:
        raise RewardError(f"data_source = {data_source!r} names no task; expected {PREFIX}TASK")
    return create_dataset(task, **json.loads(options)).score_answer
