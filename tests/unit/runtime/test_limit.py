"""The time limit, and what it leaves behind."""

import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from verl_hpc.runtime.limit import TimeLimitExceeded, time_limit


@pytest.fixture(autouse=True)
def nothing_is_left_armed(no_alarm):
    yield
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
    assert signal.getsignal(signal.SIGALRM) is signal.SIG_DFL


def spin(seconds: float) -> None:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


def swallow() -> None:
    try:
        spin(60)
    except Exception:
        pytest.fail("the limit was caught in passing")


def swallow_everything() -> None:
    for _ in range(2):
        try:
            spin(60)
        except BaseException:
            continue
    spin(60)


class Slow:
    """Python drops what its finalizer raises."""

    def __del__(self) -> None:
        spin(0.3)


ENDLESS = {
    "loop": lambda: spin(60),
    "sleep": lambda: time.sleep(60),
    "regular expression": lambda: re.match(r"(a+)+b", "a" * 40),
    "big integer": lambda: 9 ** (9**9),
    "except Exception": swallow,
    "except BaseException": swallow_everything,
    "finalizer": lambda: Slow() and spin(60),
}


@pytest.mark.parametrize("work", ENDLESS.values(), ids=ENDLESS)
def test_work_of_every_kind_is_cut_short(work):
    start = time.monotonic()
    with pytest.raises(TimeLimitExceeded), time_limit(0.1):
        work()
    assert time.monotonic() - start < 30


def test_the_sooner_of_two_limits_counts():
    for _ in range(2):  # a limit follows one that was hit
        with pytest.raises(TimeLimitExceeded), time_limit(0.05), time_limit(5):
            spin(60)
    with time_limit(5):
        with pytest.raises(TimeLimitExceeded), time_limit(0.1):
            spin(60)
        left, _ = signal.getitimer(signal.ITIMER_REAL)
        assert 4 < left < 4.95


def test_a_limit_that_was_hit_inside_is_not_hit_again_outside():
    with time_limit(0.1):
        with pytest.raises(TimeLimitExceeded), time_limit(5):
            spin(60)
        spin(0.2)


@pytest.mark.parametrize("due", [0.05, 5.0])
def test_a_timer_of_someone_else_is_given_back(due):
    calls = []
    signal.signal(signal.SIGALRM, lambda *_: calls.append("theirs"))
    signal.setitimer(signal.ITIMER_REAL, due)
    with pytest.raises(TimeLimitExceeded), time_limit(0.1):
        spin(60)
    spin(0.01)
    left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert calls == (["theirs"] if due < 0.1 else [])
    assert left == 0 if due < 0.1 else 4 < left < 4.95


def test_code_that_goes_on_all_the_same_ends_the_process(tmp_path):
    script = tmp_path / "endless.py"
    script.write_text(
        "import time\n"
        "from verl_hpc.runtime import limit\n"
        "limit._AGAIN_S = 0.01\n"
        "def reward():\n"
        "    while True:\n"
        "        try:\n"
        "            time.sleep(60)\n"
        "        except BaseException: pass\n"
        "with limit.time_limit(0.05):\n"
        "    reward()\n"
    )
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1
    assert "RewardError: code under a time limit of 0.05 s caught it 10 times" in done.stderr
    assert re.search(r"is at .*endless\.py, line 7, in reward; catch Exception", done.stderr)


def test_off_the_main_thread_there_is_none():
    finished = []

    def work():
        with time_limit(0.01):
            spin(0.1)
        finished.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert finished == [True]
