"""Call asynchronous reward functions, many at a time, in one event loop.

The loop runs in a thread of its own for as long as the process: a client that a function keeps
between calls belongs to the loop that it was made in, and whoever calls may have a running loop, as
a notebook has.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Awaitable, Sequence
from functools import cache
from typing import Any

from verl_hpc.rewards.request import Request, RewardFunction, arguments, bounded, taken
from verl_hpc.runtime.limit import TimeLimitExceeded

MOST_AT_ONCE = 64
"""Most calls of a function in one process at a time."""
_STUCK_S = 15.0
"""Seconds after the last call's time limit at which calls that do not end have failed."""


class BlockedError(RuntimeError):
    """A coroutine blocks its event loop."""


def is_async(function: RewardFunction) -> bool:
    """Whether a call gives a coroutine: an `async def`, also in a partial, as `__call__`, or in a
    decorator that sets `__wrapped__`."""
    own = inspect.unwrap(function)
    call = getattr(own, "__call__", None)  # noqa: B004
    return inspect.iscoroutinefunction(own) or inspect.iscoroutinefunction(call)


def at_once(function: RewardFunction, timeout_s: float) -> RewardFunction:
    """Return a function of a whole list that awaits calls of an asynchronous one.

    Args:
        function: called by keyword, for one response.
        timeout_s: longest that each call may take.
    """
    names = taken(function)

    @bounded
    def of_all(requests: Sequence[Request]) -> list[Any]:
        calls = [arguments(request, names) for request in requests]
        rounds = -(-len(calls) // MOST_AT_ONCE)
        results: list[Any] = awaited(
            _gathered(function, calls, timeout_s), rounds * timeout_s + _STUCK_S
        )
        return results

    return of_all


async def _gathered(
    function: RewardFunction, calls: Sequence[dict[str, Any]], timeout_s: float
) -> list[Any]:
    """Return the result of each call, in order, or the exception with which it ended."""
    places = asyncio.Semaphore(MOST_AT_ONCE)

    async def one(given: dict[str, Any]) -> Any:
        async with places:
            value = function(**given)
            if not inspect.isawaitable(value):  # a decorator has waited
                return value
            result, error = await _ending(value, timeout_s)
            return result if error is None else error

    return await asyncio.gather(*map(one, calls))


async def _ending(
    value: Awaitable[Any], timeout_s: float | None
) -> tuple[Any, BaseException | None]:
    """Return a result or its exception, as some exceptions would end the loop's thread."""
    limit = asyncio.timeout(timeout_s)
    try:
        async with limit:
            return await value, None
    except BaseException as error:
        return None, TimeLimitExceeded() if limit.expired() else error


def awaited(value: Any, within_s: float | None = None) -> Any:
    """Return a value, or its result if it is awaitable.

    Raises:
        BlockedError: there is no result in `within_s` seconds.
    """
    if not inspect.isawaitable(value):
        return value
    future = asyncio.run_coroutine_threadsafe(_ending(value, None), _loop())
    try:
        result, error = future.result(within_s)
    except TimeoutError:
        raise BlockedError(
            f"nothing comes of it in {within_s:g} s: it holds its event loop, or catches what "
            "cancels it; await what takes long, or write a function without async"
        ) from None
    finally:
        future.cancel()
    if error is not None:
        raise error
    return result


@cache
def _loop() -> asyncio.AbstractEventLoop:
    """Return this process's loop, made at the first score so that no fork inherits it."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, name="verl_hpc-awaits", daemon=True).start()
    return loop
