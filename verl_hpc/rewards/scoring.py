"""Scores of a rank's responses, and what happens when a reward function fails."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from numbers import Real
from typing import Any

from verl_hpc.config.data import RewardConfig
from verl_hpc.errors import RewardError
from verl_hpc.rewards.guard import describe, guarded, message
from verl_hpc.rewards.registry import RewardFunction
from verl_hpc.runtime.limit import TimeLimitExceeded


@dataclass(frozen=True)
class Request:
    """A response, and the fields of the problem it answers."""

    index: int
    """Row of the problem in its data set."""
    data_source: str
    ground_truth: Any
    extra: dict[str, Any]
    response: str
    origin: str = ""
    """The file of the problem, and the line or row in it."""


@dataclass(frozen=True)
class Score:
    """What a reward function made of one response."""

    value: float
    metrics: dict[str, float] = field(default_factory=dict)
    """Further numbers of a function that returns a mapping."""
    error: str | None = None
    """Why `value` is 0 where the function failed and reward.on_error is zero."""


def score_responses(
    function: RewardFunction, requests: Iterable[Request], config: RewardConfig
) -> list[Score]:
    """Score every request, one after another.

    A call fails that raises, calls sys.exit, runs longer than `config.timeout_s` (on the main
    thread; elsewhere there is no limit), or returns anything but a finite number or a mapping from
    strings with one as "score".

    Raises:
        RewardError: a call failed and `config.on_error` is stop; or, whatever it is, the function
            itself raised RewardError: it cannot score such rows at all.
    """
    return [_score(function, request, config) for request in requests]


def _score(function: RewardFunction, request: Request, config: RewardConfig) -> Score:
    try:
        with guarded(config.timeout_s):
            result = function(
                data_source=request.data_source,
                solution_str=request.response,
                ground_truth=request.ground_truth,
                extra_info=request.extra,
            )
            return _read(result)
    except RewardError as error:
        raise RewardError(f"{_call(request, config)}: {message(error)}") from error
    except TimeLimitExceeded as error:
        return _failed(f"ran longer than timeout_s = {config.timeout_s:g}", error, request, config)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return _failed(describe(error), error, request, config)


def _failed(reason: str, error: BaseException, request: Request, config: RewardConfig) -> Score:
    if config.on_error == "zero":
        return Score(0.0, error=reason)
    raise RewardError(
        f"{_call(request, config)}: {reason}; mend the function, or set reward.on_error to zero"
    ) from error


def _call(request: Request, config: RewardConfig) -> str:
    return (
        f"reward.function = {config.function}, {request.origin or f'row {request.index}'}, "
        f"response {request.response!r:.100}"
    )


def _read(result: Any) -> Score:
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(f"the result has no 'score'; it has {', '.join(map(str, result))}")
        for key in result:
            if not isinstance(key, str):
                raise TypeError(f"the result has the key {key!r:.60}; keys are strings")
        others = {k: float(v) for k, v in result.items() if k != "score" and isinstance(v, Real)}
        return Score(_finite(result["score"]), others)
    return Score(_finite(result))


def _finite(value: Any) -> float:
    if not isinstance(value, Real):
        raise TypeError(f"the score is {type(value).__name__} {value!r:.60}; expected a number")
    if not math.isfinite(value):
        raise ValueError(f"the score is {value}; expected a finite number")
    return float(value)
