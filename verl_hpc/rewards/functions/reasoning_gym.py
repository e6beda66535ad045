"""Score with the scorer of a reasoning-gym task."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from functools import cache
from typing import Any

from verl_hpc.errors import RewardError
from verl_hpc.rewards.thinking import behind_thinking
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit

PREFIX = "reasoning_gym/"
DATA_SOURCES = (f"{PREFIX}*",)
_TAGGED = re.compile(r"<answer>((?:(?!</?answer>).)*)</answer>", re.DOTALL)
"""Pattern of reasoning-gym's tags, case-sensitive as in reasoning-gym itself."""
_ARITHMETIC = re.compile(r"[\s\d+*/()=.-]*")
_CALLS = re.compile(
    r"__|\\|\.\s*[A-Za-z_]|lambda|(?<![A-Za-z_])"
    r"(?!(?:sin|cos|tan|asin|acos|atan|sinh|cosh|tanh|exp|log|ln|sqrt|Abs)\s*\()[A-Za-z_]\w*\s*\("
    r"|[\w\])}'\"]\s+\(|[\])}'\"]\("
)
"""Matches a call of anything but a mathematical function, or a way to reach a callable."""
_NUMBERS = ("countdown", "puzzle24")
_EVALUATED = (
    "simple_integration", "intermediate_integration", "polynomial_multiplication",
    "string_insertion", "spiral_matrix", "binary_matrix", "n_queens",
)  # fmt: skip
"""Tasks whose scorers run the answer as Python, by eval or by sympy."""


def reasoning_gym(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
    timeout_s: float = 5.0,
) -> float:
    """Return the task's own score of the last <answer>, or of the whole response; text before
    </think> is left out.

    An answer that the task cannot read, or not in `timeout_s` seconds, scores 0. So does a program
    where the task's scorer would run it, and a number in countdown and puzzle24 that is not
    written in decimal digits, which these scorers overlook.

    Args:
        data_source: reasoning_gym/TASK.
        extra_info: reasoning-gym's entry, and under `options` the task's settings.

    Raises:
        RewardError: `data_source` names no task.
    """
    extra = extra_info or {}
    entry = {"answer": ground_truth, **extra}
    score = _scorer(data_source, json.dumps(extra.get("options") or {}))
    said = behind_thinking(solution_str)
    said = said if said.strip() else solution_str
    answer = ([said, *_TAGGED.findall(said)][-1]).strip()
    if _is_program(answer, data_source.removeprefix(PREFIX)):
        return 0.0
    try:
        with time_limit(timeout_s):
            return float(score(answer, entry))
    except TimeLimitExceeded:
        return 0.0
    except Exception:
        # Where the right answer raises too, the entry is at fault and not the response.
        score(entry["answer"], entry)
        return 0.0


def _is_program(answer: str, task: str) -> bool:
    """Whether a task's scorer would run an answer that is more than a formula or a list."""
    if task in _NUMBERS:
        return _ARITHMETIC.fullmatch(answer) is None
    return task in _EVALUATED and _CALLS.search(answer) is not None


@cache
def _scorer(data_source: str, options: str) -> Callable[[str, dict[str, Any]], float]:
    from reasoning_gym.factory import DATASETS, create_dataset

    task = data_source.removeprefix(PREFIX)
    if task not in DATASETS:
        raise RewardError(f"data_source = {data_source!r} names no task; expected {PREFIX}TASK")
    return create_dataset(task, **json.loads(options)).score_answer
