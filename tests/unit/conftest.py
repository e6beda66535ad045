"""A clock that tests set, a process without alarms, and what all property tests share."""

import signal

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does. A push tries the same examples
# as the one before; new ones are searched for with --slow.
settings.register_profile("push", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("slow", deadline=None, max_examples=300)


def pytest_configure(config):
    settings.load_profile("slow" if config.getoption("--slow") else "push")


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
