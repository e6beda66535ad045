"""The reward functions of this package, by name and by the origin of a row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from verl_hpc.config.reward import REWARD_OPTIONS
from verl_hpc.errors import RewardError
from verl_hpc.rewards import (
    accuracy,
    code,
    exact_match,
    format_reward,
    gsm8k,
    judge,
    length,
    math_reward,
    multiple_choice,
    reasoning_gym_reward,
)
from verl_hpc.rewards.request import RewardFunction

BUILT_IN: Mapping[str, RewardFunction] = {
    "accuracy_reward": accuracy.compute_score,
    "exact_match": exact_match.compute_score,
    "gsm8k": gsm8k.graded,
    "math": math_reward.graded,
    "reasoning_gym": reasoning_gym_reward.compute_score,
}

MAKERS: Mapping[str, Callable[[Any], RewardFunction]] = {
    "code": code.make,
    "format": format_reward.make,
    "judge": judge.make,
    "length": length.make,
    "multiple_choice": multiple_choice.make,
}
"""Makers of functions from their options (`config.reward.REWARD_OPTIONS`)."""

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
    "multiple_choice/*": "multiple_choice",
}
"""Patterns of data_source, first match first, and the function that scores their rows.

Those of mathematics are verl's. Their scores are 1 and 0, also where verl's DAPO gives 1 and -1.
"""


@cache
def function_for(data_source: str) -> RewardFunction:
    """Return the function that `DATA_SOURCES` names for rows from this source.

    Raises:
        RewardError: it names none.
    """
    for pattern, name in DATA_SOURCES.items():
        if fnmatchcase(data_source, pattern):
            return BUILT_IN[name] if name in BUILT_IN else MAKERS[name](REWARD_OPTIONS[name]())
    raise RewardError(
        f"data_source = {data_source!r} has no reward function; set reward.function to one of "
        f"{', '.join([*BUILT_IN, *MAKERS])}, or to path/to/file.py:function"
    )
