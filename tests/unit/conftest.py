"""A clock that tests set, a process without alarms, and what all tests and properties share."""

import random
import signal
import sys

import pytest
from hypothesis import settings

# How long an example takes depends on what else the machine does. A push tries the same examples
# as the one before; new ones are searched for with --slow.
settings.register_profile("push", deadline=None, derandomize=True, max_examples=50)
settings.register_profile("slow", deadline=None, max_examples=300)


def pytest_configure(config):
    settings.load_profile("slow" if config.getoption("--slow") else "push")


@pytest.fixture(autouse=True)
def same_draws():
    """What a test draws without a seed does not depend on the tests that ran before it."""
    random.seed(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


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
