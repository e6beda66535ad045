"""The reward functions of this package, by name and by the origin of a row."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

from verl_hpc.config.reward import REWARD_FUNCTIONS, options_of, reward_module
from verl_hpc.errors import RewardError
from verl_hpc.rewards.request import RewardFunction, taken


def built_in(name: str, options: Mapping[str, Any] | None = None) -> RewardFunction:
    """Return a function of this package; one without options of its own takes them when called."""
    module = reward_module(name)
    kind = options_of(name)
    function: RewardFunction = (
        getattr(module, name) if kind is None else module.make(kind.model_validate(options or {}))
    )
    return function


@cache
def function_for(data_source: str) -> RewardFunction:
    """Return the function whose `DATA_SOURCES` have rows from this source.

    Raises:
        RewardError: there is none.
    """
    names = [name for name in REWARD_FUNCTIONS if name != "auto"]
    for name in names:
        patterns = getattr(reward_module(name), "DATA_SOURCES", ())
        if any(fnmatchcase(data_source, pattern) for pattern in patterns):
            return built_in(name)
    raise RewardError(
        f"data_source = {data_source!r} has no reward function; set reward.function to one of "
        f"{', '.join(names)}, or to path/to/file.py:function"
    )


def score_by_data_source(
    data_source: str, solution_str: str, ground_truth: Any, extra_info: dict[str, Any] | None = None
) -> float | Mapping[str, Any]:
    """Score with the function that `DATA_SOURCES` gives the row.

    Raises:
        RewardError: it gives none.
    """
    given: dict[str, Any] = {"data_source": data_source, "solution_str": solution_str}
    given |= {"ground_truth": ground_truth, "extra_info": extra_info}
    function = function_for(data_source)
    return function(**{name: given[name] for name in taken(function) if name in given})
