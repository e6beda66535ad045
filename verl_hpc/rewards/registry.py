"""Find reward functions by name, by file, or by the origin of a row."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from verl_hpc.config.reward import REWARD_FUNCTIONS, RewardConfig, options_of
from verl_hpc.errors import RewardError
from verl_hpc.rewards.awaiting import at_once, is_async
from verl_hpc.rewards.built_in import built_in, score_by_data_source
from verl_hpc.rewards.request import (
    KEYWORDS,
    NAMES,
    OF_THE_RESPONSE,
    PLURALS,
    Request,
    RewardFunction,
    arguments,
    asked,
    batched,
    is_batched,
)
from verl_hpc.rewards.user_code import load_function, loading

_NO_RESPONSE = ("prompt", "question", "reference", "truth", "target", "label", "expected", "gold")
_NO_TRUTH = ("response", "completion", "output", "prediction", "generated", "prompt", "question")
"""Names of a first and of a second argument that mean something other than what is passed."""


def get_reward_function(config: RewardConfig, setting: str = "reward") -> RewardFunction:
    """Return the function that `config` names, with its options bound.

    Args:
        config: the configuration of one function.
        setting: the setting that holds its name, for messages.

    Raises:
        RewardError: a file or function that cannot be loaded, that needs other arguments than
            there are, or that does not work here.
    """
    if options_of(config.function) is not None:
        return built_in(config.function, config.options)
    return fitted(_find(config, setting), config, setting)


def fitted(function: RewardFunction, config: RewardConfig, setting: str) -> RewardFunction:
    """Adapt a function to the way rewards are called, with its options bound.

    Args:
        function: called by keyword, of two arguments, or of a whole list.
        config: its options; its name is for messages.
        setting: the setting that holds its name, for messages.

    Raises:
        RewardError: the function cannot be called with its options.
    """
    signature = _signature(function, config, setting)
    if is_batched(function):
        return _of_requests(function, signature, config, setting)
    if "solution_strs" in signature.parameters:
        return _of_columns(function, signature, config, setting)
    of_one = _of_one(function, signature, config, setting)
    return at_once(of_one, config.timeout_s) if is_async(function) else of_one


def _of_one(
    function: RewardFunction, signature: inspect.Signature, config: RewardConfig, setting: str
) -> RewardFunction:
    given = asked(signature, NAMES, config.options)
    try:
        signature.bind(**dict.fromkeys(given), **config.options)
        if not set(OF_THE_RESPONSE).intersection(given):
            raise TypeError("it asks for nothing of the response")
        return partial(function, **config.options)
    except TypeError as error:
        if not _takes_response_and_truth(signature, config.options):
            raise _refused(signature, config, setting, error) from None

    def of_two(solution_str: str, ground_truth: Any) -> Any:
        return function(solution_str, ground_truth, **config.options)

    return of_two


def _refused(
    signature: inspect.Signature, config: RewardConfig, setting: str, error: TypeError
) -> RewardError:
    return RewardError(
        f"{setting}.function = {config.function}: it takes {signature} and cannot be called with "
        f"{setting}.options = {config.options} ({error}). A function may ask by name for any of "
        f"{', '.join(NAMES)}; one of a whole list for {', '.join(PLURALS)}; one of two arguments "
        "is called as function(response, ground_truth)"
    )


def _of_columns(
    function: RewardFunction, signature: inspect.Signature, config: RewardConfig, setting: str
) -> RewardFunction:
    """Adapt a function that takes columns, as verl's batch reward manager calls it."""
    names = asked(signature, PLURALS, config.options)
    try:
        signature.bind(**dict.fromkeys(names), **config.options)
    except TypeError as error:
        raise _refused(signature, config, setting, error) from None

    def of_all(requests: Sequence[Request]) -> Any:
        rows = [arguments(request, KEYWORDS) for request in requests]
        columns = {name: [row[PLURALS[name]] for row in rows] for name in names}
        return function(**columns, **config.options)

    return batched(of_all)


def _of_requests(
    function: RewardFunction, signature: inspect.Signature, config: RewardConfig, setting: str
) -> RewardFunction:
    try:
        signature.bind(None, **config.options)
    except TypeError as error:
        raise RewardError(
            f"{setting}.function = {config.function}: it is batched, takes {signature} and cannot "
            f"be called as function(requests) with {setting}.options = {config.options} ({error})"
        ) from None
    return batched(partial(function, **config.options))


def _signature(function: RewardFunction, config: RewardConfig, setting: str) -> inspect.Signature:
    failure = f"{setting}.function = {config.function}: its arguments cannot be read"
    with loading(failure, config.import_timeout_s), suppress(ValueError):
        return inspect.signature(function)
    raise RewardError(
        f"{setting}.function = {config.function}: nothing says what it takes; write a Python "
        f"function of {', '.join(KEYWORDS)}, or of (response, ground_truth)"
    )


def _takes_response_and_truth(signature: inspect.Signature, options: Mapping[str, Any]) -> bool:
    """Whether a function takes two arguments, options aside, whose names do not say that they are
    something else than a response and its ground truth."""
    needed = [
        p.name
        for p in signature.parameters.values()
        if p.name not in options
        and p.default is p.empty
        and p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)
    ]
    try:
        first, second = needed
        signature.bind(None, None, **options)
    except (TypeError, ValueError):
        return False
    return not _says(first, _NO_RESPONSE, "solution_str") and not _says(
        second, _NO_TRUTH, "ground_truth"
    )


def _says(name: str, words: Sequence[str], own: str) -> bool:
    """Whether one of the words, or its plural, is in the name; or the name is another of verl's."""
    is_others = name in KEYWORDS and name != own
    return is_others or any(part.removesuffix("s") in words for part in name.split("_"))


def _find(config: RewardConfig, setting: str) -> RewardFunction:
    name = config.function
    if name == "auto":
        return score_by_data_source
    if name in REWARD_FUNCTIONS:
        return built_in(name)
    return load_function(name, config.import_timeout_s, f"{setting}.function")
