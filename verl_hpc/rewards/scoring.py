"""Score a rank's responses, and handle failures of reward functions."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence, Sized
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from numbers import Complex, Real
from typing import Any, SupportsFloat

from verl_hpc.config.reward import RewardConfig
from verl_hpc.errors import RewardError, ScoreNotFiniteError
from verl_hpc.rewards.awaiting import awaited
from verl_hpc.rewards.guard import capped_output, describe, guarded, message
from verl_hpc.rewards.request import (
    Request,
    RewardFunction,
    arguments,
    is_batched,
    is_bounded,
    taken,
)
from verl_hpc.runtime.limit import TimeLimitExceeded


class ScoreValueError(ValueError):
    """A score is NaN or infinite."""


@dataclass(frozen=True)
class Score:
    """Score of one response."""

    value: float
    metrics: dict[str, float] = field(default_factory=dict)
    """Further numbers of a function that returns a mapping."""
    error: str | None = None
    """Why `value` is 0 if the function failed and reward.on_error is zero."""
    per_token: list[float] = field(default_factory=list)
    """Reward of each token of the response, if the function gives them. The last token that is
    trained on also earns `value` minus their sum."""


def score_responses(
    function: RewardFunction,
    requests: Sequence[Request],
    config: RewardConfig,
    setting: str = "reward",
) -> list[Score]:
    """Score every request, one after another, or all in one call of a function that is batched.

    A call fails that raises, calls sys.exit, runs longer than `config.timeout_s` (on the main
    thread; elsewhere there is no limit; a batched one has as long for each request), or returns
    anything but a finite number, a list of these (a number for each token, or for each turn of the
    model), or a mapping from strings with either as "score".

    Args:
        function: the reward function.
        requests: the responses.
        config: time limit, and treatment of failures.
        setting: the setting that names the function, for messages.

    Raises:
        RewardError: a call failed and `config.on_error` is stop; or, whatever it is, the function
            itself raised RewardError: it cannot score such rows at all.
        DataError: the function takes the row, and it cannot be read.
    """
    with capped_output(f"{setting}.function = {config.function}"):
        if is_batched(function):
            return _score_together(function, requests, config, setting)
        return _score_each(function, requests, config, setting)


def _score_each(
    function: RewardFunction, requests: Sequence[Request], config: RewardConfig, setting: str
) -> list[Score]:
    names = taken(function)

    def score(request: Request) -> Score:
        given = arguments(request, names)
        return _scored(config, setting, request, lambda: _read(awaited(function(**given)), request))

    return list(map(score, requests))


def _score_together(
    function: RewardFunction, requests: Sequence[Request], config: RewardConfig, setting: str
) -> list[Score]:
    if not requests:
        return []
    results: list[Any] = []

    def run() -> Score:
        results.extend(_of_each(awaited(function(requests)), len(requests)))
        return Score(0.0)

    times = math.inf if is_bounded(function) else len(requests)
    whole = _scored(config, setting, requests[0], run, times)
    if whole.error is not None:
        return [whole] * len(requests)

    def read(result: Any, request: Request) -> Score:
        if isinstance(result, BaseException):
            raise result
        return _read(result, request)

    return [
        _scored(config, setting, request, partial(read, result, request))
        for result, request in zip(results, requests, strict=True)
    ]


def _of_each(found: Any, count: int) -> Iterable[Any]:
    """Return the results of a function of a list, one for each response; arrays and tensors also
    count as lists."""
    is_list = hasattr(found, "__getitem__") and not isinstance(found, (Mapping, str, bytes))
    shape = getattr(found, "shape", None)
    size = len(found) if isinstance(found, Sized) and shape != () else "no length"
    if not is_list or size != count:
        raise TypeError(
            f"the result is {type(found).__name__} ({size}); expected a list of {count}, one a "
            "response"
        )
    results: Iterable[Any] = found
    return results


def _scored(
    config: RewardConfig, setting: str, request: Request, run: Callable[[], Score], times: float = 1
) -> Score:
    """Run one call of a reward function under `times` time limits, and handle its failure."""
    limit_s = config.timeout_s * times
    try:
        with guarded(limit_s):
            return run()
    except RewardError as error:
        raise RewardError(f"{_words(config, setting, request)}: {message(error)}") from error
    except TimeLimitExceeded as error:
        reason = f"ran longer than timeout_s = {limit_s:g}"
        return failed(config, setting, request, reason, error)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        return failed(config, setting, request, describe(error), error)


def failed(
    config: RewardConfig,
    setting: str,
    request: Request,
    reason: str,
    error: BaseException | None = None,
) -> Score:
    """Return the score of a call that failed.

    Raises:
        RewardError: `config.on_error` is stop.
    """
    if config.on_error == "zero":
        return Score(0.0, error=reason)
    # A function that Python is given has no settings.
    in_a_file = "reward" in setting.split(".")
    other = f"set {setting}.on_error to zero" if in_a_file else "let it return 0 for such responses"
    kind = ScoreNotFiniteError if isinstance(error, ScoreValueError) else RewardError
    raise kind(
        f"{_words(config, setting, request)}: {reason}; mend the function, or {other}"
    ) from error


def _words(config: RewardConfig, setting: str, request: Request) -> str:
    return (
        f"{setting}.function = {config.function}, "
        f"{request.origin or f'row {request.index}'}, response {request.response!r:.100}"
    )


def _read(result: Any, request: Request) -> Score:
    """Read a result: a number, a list of numbers, whose sum is the score, or a mapping with
    either."""
    value, figures = result, {}
    if isinstance(result, Mapping):
        if "score" not in result:
            raise ValueError(f"the result has no 'score'; it has {', '.join(map(str, result))}")
        for key in result:
            if not isinstance(key, str):
                raise TypeError(f"the result has the key {key!r:.60}; keys are strings")
        value = result["score"]
        figures = _figures({k: v for k, v in result.items() if k != "score"})
    numbers = _listed(value)
    if numbers is None:
        return Score(_finite(value), figures)
    rewards = _per_token([_finite(number) for number in numbers], request)
    return Score(_finite(math.fsum(rewards)), figures, per_token=rewards)


def _listed(found: Any) -> list[Any] | None:
    """Return the numbers of a score that is a list or an array with one dimension; None for others.

    An array of a single number is that number.
    """
    shape = getattr(found, "shape", None)
    if shape is not None and len(shape) == 1 and shape[0] != 1:
        numbers: list[Any] = found.tolist()
        return numbers
    is_text = isinstance(found, str | bytes)
    return list(found) if isinstance(found, Sequence) and not is_text else None


def _per_token(numbers: Sequence[float], request: Request) -> list[float]:
    """Return the reward of each token of a response. The number of a turn belongs to its last
    token.

    Args:
        numbers: one for each token of the response (those of an environment included), or one for
            each turn of the model.

    Raises:
        ValueError: the number of numbers is neither of these.
    """
    num_tokens = len(request.response_ids)
    if len(numbers) == num_tokens:
        return list(numbers)
    counts = accumulate(len(turn["token_ids"]) for turn in request.turns)
    turns = zip(request.turns, counts, strict=True)
    ends = [count - 1 for turn, count in turns if turn["role"] == "assistant"]
    if len(numbers) != len(ends):
        raise ValueError(
            f"the score is a list of {len(numbers)} numbers, and the response has {num_tokens} "
            f"tokens in {len(ends)} turns of the model; give one number for each token, or one for "
            "each turn"
        )
    rewards = [0.0] * num_tokens
    for end, number in zip(ends, numbers, strict=True):
        rewards[end] = number
    return rewards


def _figures(values: Mapping[str, Any]) -> dict[str, float]:
    """Return the values that are numbers."""
    figures = {}
    for name, value in values.items():
        # An array of several numbers has __float__ as well.
        with suppress(TypeError, ValueError, RuntimeError):
            figures[name] = _number(value)
    return figures


def _finite(value: Any) -> float:
    try:
        number = _number(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(
            f"the score is {type(value).__name__} {value!r:.60}; expected a number"
        ) from error
    if not math.isfinite(number):
        raise ScoreValueError(f"the score is {number}; expected a finite number")
    return number


def _number(value: Any) -> float:
    """Convert a number of any library: of Python, of numpy, or a tensor with one element.

    Raises:
        TypeError, ValueError, RuntimeError: the value is no number.
    """
    # numpy gives up float() of arrays that have a dimension.
    one = value.item() if getattr(value, "shape", ()) == (1,) else value
    is_complex = isinstance(one, Complex) and not isinstance(one, Real)
    if is_complex or not isinstance(one, SupportsFloat):
        raise TypeError(f"{type(value).__name__} is no number")
    return float(one)
