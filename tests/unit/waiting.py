"""An end for what may wait for ever."""

import signal
import time

import pytest


def within(seconds, do, *arguments):
    """What a function gives or raises, before so many seconds are over."""

    def over(*_):
        pytest.fail(f"not over after {seconds} s")

    before = signal.signal(signal.SIGALRM, over)
    signal.alarm(seconds)
    try:
        return do(*arguments)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def wait_for(condition, seconds=30):
    """Return once a condition holds, before so many seconds are over."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"nothing happened within {seconds} s"
        time.sleep(0.01)
