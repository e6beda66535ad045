"""A time limit on Python code."""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

from verl_hpc.errors import RewardError

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_SOON_S = 0.01
_AGAIN_S = 1.0
"""Code that has caught the exception meets it again."""
_MOST_TIMES = 10


class TimeLimitExceeded(BaseException):
    """Not an `Exception`, so that code under a limit does not catch it in passing."""


class _Limit:
    """Handler of the alarms of one limit."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._num_raised = 0

    def __call__(self, _signal: int, frame: FrameType | None) -> NoReturn:
        if self._num_raised == _MOST_TIMES:
            self._give_up(frame)
        self._num_raised += 1
        raise TimeLimitExceeded

    def _give_up(self, frame: FrameType | None) -> NoReturn:
        """Nothing that is raised would get through: the process ends as with an uncaught one."""
        place = "unknown" if frame is None else f"{frame.f_code.co_filename}, line {frame.f_lineno}"
        name = "" if frame is None else f", in {frame.f_code.co_name}"
        error = RewardError(
            f"code under a time limit of {self._seconds:g} s caught it {_MOST_TIMES} times and "
            f"continues; it is at {place}{name}; catch Exception there, not BaseException"
        )
        sys.excepthook(type(error), error, None)
        os._exit(1)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in the block once `seconds` have passed.

    It is raised each second until the block ends; a block that continues after the tenth ends the
    process.

    Limits nest; within one that ends sooner, this one does nothing. There is no limit off the main
    thread, where Python delivers no signals, and none once the block itself uses SIGALRM. A child
    process would have neither gap, but an MPI process must not fork.
    """
    if threading.current_thread() is not threading.main_thread() or _enclosing() <= seconds:
        yield
        return
    start = time.monotonic()
    unraisable = sys.unraisablehook
    sys.unraisablehook = partial(_expire_again, unraisable)
    handler = signal.signal(signal.SIGALRM, _Limit(seconds))
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _AGAIN_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, handler)
        sys.unraisablehook = unraisable
        if left:
            # A timer that was due in the block is due now; 0 would switch it off.
            due = max(left - (time.monotonic() - start), 1e-6)
            signal.setitimer(signal.ITIMER_REAL, due, interval)


def _enclosing() -> float:
    """Seconds until a limit around this one ends."""
    left, _ = signal.getitimer(signal.ITIMER_REAL)
    return left if left and isinstance(signal.getsignal(signal.SIGALRM), _Limit) else math.inf


def _expire_again(hook: Callable[[Any], Any], lost: UnraisableHookArgs) -> None:
    """Python drops what finalizers and callbacks of weak references raise: once more, then."""
    if isinstance(lost.exc_value, TimeLimitExceeded):
        signal.setitimer(signal.ITIMER_REAL, _SOON_S, _AGAIN_S)
    else:
        hook(lost)
