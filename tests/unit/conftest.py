"""A clock that tests set, and a process without alarms."""

import signal

import pytest


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def no_alarm():
    """Take pytest-timeout's alarm away for the time of the test."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)
