import signal

import pytest

from tests.unit.data.conftest import gsm8k_dir

__all__ = ["gsm8k_dir", "no_alarm"]


@pytest.fixture
def no_alarm():
    """Take pytest-timeout's alarm away for the time of the test."""
    handler = signal.signal(signal.SIGALRM, signal.SIG_DFL)
    timer = signal.setitimer(signal.ITIMER_REAL, 0)
    yield
    signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, *timer)
