"""Reward functions by name, by file, or by the origin of a row."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import partial
from typing import Any

from verl_hpc.config.data import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards import exact_match, gsm8k, math_reward, reasoning_gym_reward
from verl_hpc.rewards.user_code import load_function

RewardFunction = Callable[..., float | Mapping[str, Any]]
"""Called as verl calls it: `function(data_source=, solution_str=, ground_truth=, extra_info=)`.

The result is the score, or a mapping with "score" and further figures.
"""

BUILT_IN: Mapping[str, RewardFunction] = {
    "exact_match": exact_match.compute_score,
    "gsm8k": gsm8k.compute_score,
    "math": math_reward.compute_score,
    "reasoning_gym": reasoning_gym_reward.compute_score,
}

DATA_SOURCES: Mapping[str, str] = {
    "openai/gsm8k": "gsm8k",
    "lighteval/MATH": "math",
    "DigitalLearningGmbH/MATH-lighteval": "math",
    "HuggingFaceH4/MATH-500": "math",
    "math": "math",
    "math_dapo": "math",
    "math_dapo_reasoning": "math",
    "aime*": "math",
    "numina_*": "math",
    "reasoning_gym/*": "reasoning_gym",
}
"""Patterns of data_source, first match first, and the function that scores their rows.

Those of mathematics are verl's. Their scores are 1 and 0, also where verl's DAPO gives 1 and -1.
"""


def get_reward_function(config: RewardConfig) -> RewardFunction:
    """The function `config` names, with its options bound.

    Raises:
        RewardError: a file or function that cannot be loaded, or options that the function does
            not take.
    """
    function = _find(config)
    call = dict.fromkeys(("data_source", "solution_str", "ground_truth", "extra_info"))
    signature = inspect.signature(function)
    try:
        signature.bind(**call, **config.options)
    except TypeError as error:
        raise RewardError(
            f"reward.function = {config.function}: cannot be called with {', '.join(call)} and "
            f"reward.options = {config.options}: {error}; it takes {signature}"
        ) from None
    return partial(function, **config.options)


def _find(config: RewardConfig) -> RewardFunction:
    name = config.function
    if name == "auto":
        return score_by_data_source
    if name in BUILT_IN:
        return BUILT_IN[name]
    return load_function(name, config.import_timeout_s)


def score_by_data_source(
    data_source: str,
    solution_str: str,
    ground_truth: Any,
    extra_info: dict[str, Any] | None = None,
) -> float | Mapping[str, Any]:
    """Score with the function that `DATA_SOURCES` gives the row.

    Raises:
        RewardError: it gives none.
    """
    for pattern, name in DATA_SOURCES.items():
        if fnmatchcase(data_source, pattern):
            return BUILT_IN[name](data_source, solution_str, ground_truth, extra_info)
    raise RewardError(
        f"data_source = {data_source!r} has no reward function; set reward.function to one of "
        f"{', '.join(BUILT_IN)}, or to path/to/file.py:function"
    )
