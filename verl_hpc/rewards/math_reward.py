r"""The answer of a mathematics problem: what the last \boxed{} of the response holds."""

from __future__ import annotations

import logging
from functools import cache
from types import ModuleType
from typing import Any

from verl_hpc.errors import RewardError
from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit


def compute_score(
    data_source: str,  # noqa: ARG001
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,  # noqa: ARG001
    timeout_s: float = 5.0,
) -> float:
    r"""1 for an answer that is mathematically equal to `ground_truth`; else 0.

    A response without \boxed{} may say 'the answer is ...'. An answer that cannot be judged in
    `timeout_s` seconds, such as 9^{9^{9^9}}, is wrong.

    Raises:
        RewardError: the row has no ground truth.
    """
    if ground_truth is None or not str(ground_truth).strip():
        raise RewardError(f"ground_truth = {ground_truth!r} is not an answer to compare with")
    library = _math_verify()
    # Only from the last box on: math-verify makes several boxes one set.
    answer = solution_str[max(solution_str.rfind("\\boxed"), 0) :]
    try:
        with time_limit(timeout_s):
            return float(_equal(library, f"\\boxed{{{ground_truth}}}", answer))
    except TimeLimitExceeded:
        return 0.0


def _equal(library: ModuleType, gold: str, response: str) -> bool:
    latex = library.LatexExtractionConfig(boxed_match_priority=0, try_extract_without_anchor=False)
    plain = library.ExprExtractionConfig(try_extract_without_anchor=False)
    # Without its own timeouts: they would reset ours, and fail off the main thread.
    expected = library.parse(gold, [latex], parsing_timeout=None)
    found = library.parse(response, [latex, plain], parsing_timeout=None)
    return bool(library.verify(expected, found, timeout_seconds=None))


@cache
def _math_verify() -> ModuleType:
    import math_verify

    # It warns on every rank that it has no timeout.
    logging.getLogger("math_verify").setLevel(logging.ERROR)
    return math_verify
