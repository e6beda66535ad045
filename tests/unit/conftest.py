"""A clock that tests set, calls of the program, and what all tests and properties share."""

import random
import signal
import sys

import pytest
from hypothesis import settings

from verl_hpc.cli.main import main

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


@pytest.fixture
def here(tmp_path, monkeypatch):
    """An empty directory, which is the working one."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


@pytest.fixture
def prints(capsys):
    """Call the program, which must succeed; gives its standard output."""
    return lambda *words: _call(capsys, words, 0).out


@pytest.fixture
def refuses(capsys):
    """Call the program, which must end with status 1; gives its standard error."""
    return lambda *words: _call(capsys, words, 1).err


@pytest.fixture
def called(capsys):
    """Call the program: (status, standard output, standard error)."""

    def call(*words):
        status = main([str(word) for word in words])
        return status, *capsys.readouterr()

    return call


def _call(capsys, words, status):
    assert main([str(word) for word in words]) == status
    return capsys.readouterr()
