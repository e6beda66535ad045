"""A time limit on Python code."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sys import UnraisableHookArgs

_SOON_S = 0.01


class TimeLimitExceeded(BaseException):
    """Not an `Exception`, so that code under a limit does not catch it in passing."""


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise `TimeLimitExceeded` in the block once `seconds` have passed.

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
    handler = signal.signal(signal.SIGALRM, _expire)
    left, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
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
    return left if left and signal.getsignal(signal.SIGALRM) is _expire else math.inf


def _expire(_signal: int, _frame: FrameType | None) -> None:
    raise TimeLimitExceeded


def _expire_again(hook: Callable[[Any], Any], lost: UnraisableHookArgs) -> None:
    """Python drops what finalizers and callbacks of weak references raise: once more, then."""
    if isinstance(lost.exc_value, TimeLimitExceeded):
        signal.setitimer(signal.ITIMER_REAL, _SOON_S)
    else:
        hook(lost)
