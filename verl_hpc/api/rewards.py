"""Reward functions as tutorials hand them over: a function, or a name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from pydantic import ValidationError

from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all, shown
from verl_hpc.config.reward import REWARD_FUNCTIONS, RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards.registry import fitted
from verl_hpc.rewards.scorer import FunctionScorer, Scorer, make_scorer

_F = TypeVar("_F", bound=Callable[..., Any])
_SETTING = "reward_fn"
"""Name of the setting, for messages."""
_REGISTERED: dict[str, Callable[..., Any]] = {}

Reward = str | Callable[..., Any] | None
"""A name, a function, or None: every response is worth 0, and only the KL penalty teaches."""


@checked
def register_reward(function: _F) -> _F:
    """Make a function known by its own name in this process: `reward_fn="its_name"`.

    Raises:
        ConfigError: it is no function.
        RewardError: it has no name of its own, a built-in function has that name, or another
            one is known by it.
    """
    name = getattr(function, "__name__", "")
    if not name.isidentifier():
        raise RewardError(
            f"register_reward: {shown(function)} has no name to be known by; define it with def, "
            "or give it itself as reward_fn"
        )
    if name in REWARD_FUNCTIONS:
        raise RewardError(f"register_reward: {name} is a function of verl_hpc; rename yours")
    other = _REGISTERED.setdefault(name, function)
    if other is not function and other.__module__ != function.__module__:
        raise RewardError(
            f"register_reward: {name} of {other.__module__} is known by this name; rename one"
        )
    _REGISTERED[name] = function
    return function


def scorer_of(reward: Reward) -> Scorer:
    """Return what scores responses.

    Args:
        reward: a function as reward.function takes one (docs/rewards.md), its name, or None.

    Raises:
        RewardError: no such name, or a function that cannot be called as rewards are.
    """
    if reward is None:
        return _of_function(_nothing)
    if isinstance(reward, str):
        if reward in _REGISTERED:
            return _of_function(_REGISTERED[reward])
        try:
            return make_scorer(RewardConfig(function=reward), _SETTING)
        except ValidationError:
            known = [*_REGISTERED, *REWARD_FUNCTIONS]
            raise RewardError(
                f"{_SETTING} = {reward!r}: no such function; {near_or_all(reward, known)}. Your "
                "own: give the function itself, register_reward(function), or "
                "path/to/file.py:function"
            ) from None
    return _of_function(reward)


def _of_function(function: Callable[..., Any]) -> FunctionScorer:
    name = getattr(function, "__name__", type(function).__name__)
    config = RewardConfig.model_construct(function=name)
    return FunctionScorer(fitted(function, config, _SETTING), config, _SETTING)


def _nothing(response: str, ground_truth: Any) -> float:
    del response, ground_truth
    return 0.0
