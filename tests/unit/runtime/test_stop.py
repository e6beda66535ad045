"""What makes a rank ask to leave, and that all ranks agree on the strongest request."""

import os
import signal
from itertools import permutations

import pytest

from verl_hpc.config.requests import Request, leave_request, read_requests, withdraw
from verl_hpc.errors import ConfigError
from verl_hpc.runs.contract import END_TIME
from verl_hpc.runtime.stop import MARGIN_S, Signals, StopFlag, StopRequest


class Others:
    """A control plane in which the other ranks have requests of their own."""

    def __init__(self, rank=0, stop_requests=()):
        self.rank, self.stop_requests = rank, stop_requests

    def max(self, mine):
        return max([mine, *map(int, self.stop_requests)])


@pytest.fixture
def run(tmp_path):
    (tmp_path / "config.yaml").write_text("name: x\n")
    return tmp_path


@pytest.fixture
def handlers():
    before = {s: signal.getsignal(s) for s in (signal.SIGTERM, signal.SIGUSR2, signal.SIGINT)}
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


SIGNALS = [
    ([], 0, StopRequest.CONTINUE),
    ([signal.SIGUSR2], 0, StopRequest.RESTART),
    ([signal.SIGTERM], 0, StopRequest.RESTART_NOW),
    ([signal.SIGUSR2, signal.SIGUSR2], 60, StopRequest.RESTART_NOW),
    # Sent once, and handed on by a container's runtime.
    ([signal.SIGUSR2, signal.SIGUSR2], 1, StopRequest.RESTART),
    ([signal.SIGUSR2, signal.SIGTERM], 0, StopRequest.RESTART_NOW),
    ([signal.SIGTERM, signal.SIGUSR2], 60, StopRequest.RESTART_NOW),
    ([signal.SIGTERM, signal.SIGUSR2], 0, StopRequest.RESTART_NOW),
    ([signal.SIGINT], 0, StopRequest.RESTART_NOW),
    ([signal.SIGINT, signal.SIGINT], 0.5, StopRequest.RESTART_NOW),
    ([signal.SIGUSR2, signal.SIGINT], 60, StopRequest.RESTART_NOW),
]


@pytest.mark.parametrize("signals, seconds_between, stop_request", SIGNALS)
def test_signals(run, handlers, clock, signals, seconds_between, stop_request):
    noted = Signals(clock)
    noted.listen()
    for number in signals:
        os.kill(os.getpid(), number)
        clock.now += seconds_between
    flag = StopFlag(Others(), run, noted)
    assert flag.stop_request(1) is stop_request
    if signals:
        assert signals[-1].name in flag.reason


def test_signals_that_change_nothing(handlers):
    """After the last step; and Ctrl-C for what a script runs in its background."""
    noted = Signals()
    noted.listen()
    noted.ignore()
    for number in (signal.SIGUSR2, signal.SIGTERM, signal.SIGINT):
        os.kill(os.getpid(), number)
    assert noted.stop_request is StopRequest.CONTINUE
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    noted = Signals()
    noted.listen()
    os.kill(os.getpid(), signal.SIGINT)
    assert noted.stop_request is StopRequest.CONTINUE


def test_the_strongest_request_of_all_ranks_counts(run):
    for others in permutations(StopRequest, 2):
        assert StopFlag(Others(stop_requests=others), run, Signals()).agree(1) is max(others)


@pytest.mark.parametrize("later, earlier", permutations(["SLURM_JOB_END_TIME", END_TIME]))
def test_a_step_that_would_not_end_in_time_is_not_begun(run, clock, monkeypatch, later, earlier):
    monkeypatch.setenv(later, "2001")
    monkeypatch.setenv(earlier, "2000")
    flag = StopFlag(Others(), run, Signals(), clock)
    flag.took(step=100.0, save=50.0)
    flag.took(step=80.0)
    clock.now = 2000 - 150 - MARGIN_S - 1
    assert flag.stop_request(1) is StopRequest.CONTINUE
    clock.now += 2
    assert flag.stop_request() is StopRequest.CONTINUE, (
        "in the middle of a step it is too late to ask"
    )
    assert flag.stop_request(2) is StopRequest.RESTART
    assert "the allocation ends" in flag.reason


def test_an_end_that_is_no_number_is_refused(run, monkeypatch):
    monkeypatch.setenv(END_TIME, "12:00:00")
    with pytest.raises(ConfigError, match=r"VERL_HPC_END_TIME=12:00:00: .* seconds since"):
        StopFlag(Others(), run, Signals())


def test_steps_and_evaluations_that_would_pass_the_end_or_the_ceiling(run, clock, monkeypatch):
    """An evaluation is due before the next step, or after it, or both. At the ceiling the run stops
    for good."""
    limited = StopFlag(Others(), run, Signals(), clock, ceiling=2000)
    monkeypatch.setenv(END_TIME, "2000")
    for flag, asked in (
        (StopFlag(Others(), run, Signals(), clock), StopRequest.RESTART),
        (limited, StopRequest.STOP),
    ):
        flag.took(step=100.0, save=50.0)
        flag.took(evaluation=300.0)
        for step, due in enumerate((0, 1, 2)):
            clock.now = 2000 - 150 - 300 * due - MARGIN_S - 1
            assert flag.stop_request(step, due) is StopRequest.CONTINUE
            clock.now += 2
            assert flag.stop_request(step, due) is asked
    assert "would pass runtime.max_gpu_hours" in limited.reason


def test_a_start_that_has_used_up_the_hours_begins_no_step(run, clock):
    limited = Signals(), clock, clock.now + 10
    flag = StopFlag(Others(), run, *limited)
    assert flag.agree_to_begin() is StopRequest.CONTINUE
    others = Others(stop_requests=[StopRequest.STOP])
    assert StopFlag(others, run, *limited).agree_to_begin() is StopRequest.STOP
    assert StopFlag(others, run, Signals()).agree_to_begin() is StopRequest.CONTINUE
    clock.now += 10
    assert flag.agree_to_begin() is StopRequest.STOP


REQUESTS = [
    (Request(kind="save", by="ann"), StopRequest.SAVE),
    (Request(kind="stop", by="ann"), StopRequest.STOP),
    (Request(kind="stop", now=True, by="ann"), StopRequest.STOP_NOW),
]


@pytest.mark.parametrize("request_, stop_request", REQUESTS)
def test_requests(run, request_, stop_request):
    flag = StopFlag(Others(), run, Signals())
    assert flag.stop_request(1) is StopRequest.CONTINUE
    leave_request(run, request_)
    assert flag.stop_request(2) is stop_request
    assert flag.reason == f"asked to {request_.kind} by ann"
    flag.honoured()
    assert not read_requests(run)
    assert flag.stop_request(3) is StopRequest.CONTINUE


def test_a_save_undoes_no_stop_that_waits(run):
    flag = StopFlag(Others(), run, Signals())
    leave_request(run, Request(kind="stop", after_step=3, by="ann"))
    leave_request(run, Request(kind="save", by="cron"))
    assert flag.stop_request(1) is StopRequest.SAVE
    flag.honoured(StopRequest.SAVE)
    assert [request.kind for request in read_requests(run)] == ["stop"]
    assert [flag.stop_request(step) for step in (2, 3)] == [StopRequest.CONTINUE, StopRequest.STOP]
    assert flag.reason == "asked to stop by ann"
    leave_request(run, Request(kind="save", by="cron"))
    assert flag.stop_request(4) is StopRequest.STOP, "one that is due comes before a save"
    flag.honoured()
    assert read_requests(run) == []


def test_a_stop_that_says_now_and_has_been_seen_cannot_be_withdrawn(run, clock):
    """Ranks may have given up their step for it, and the others follow."""
    flag = StopFlag(Others(), run, Signals(), clock)
    leave_request(run, Request(kind="stop", now=True, by="ann"))
    assert flag.stop_request() is StopRequest.STOP_NOW
    withdraw(run, "stop")
    clock.now += 60
    assert flag.stop_request() is flag.stop_request(1) is StopRequest.STOP_NOW
    leave_request(run, Request(kind="stop", by="ann"))
    other = StopFlag(Others(), run, Signals(), clock)
    assert other.stop_request(1) is StopRequest.STOP
    withdraw(run, "stop")
    assert other.stop_request(2) is StopRequest.CONTINUE


def test_few_ranks_look_and_not_all_the_time_within_a_step(run, clock):
    flag, other, generates = (StopFlag(Others(i), run, Signals(), clock) for i in range(3))
    generates.reads_requests = True
    assert flag.stop_request() is StopRequest.CONTINUE
    leave_request(run, Request(kind="stop", now=True))
    clock.now += 1
    assert flag.stop_request() is StopRequest.CONTINUE
    clock.now += 5
    assert flag.stop_request() is StopRequest.STOP_NOW
    assert other.stop_request() is StopRequest.CONTINUE
    assert generates.stop_request() is StopRequest.STOP_NOW


@pytest.mark.parametrize("text", ["", "{", '{"kind": "explode"}', '{"kind": "save", "now": true}'])
def test_what_is_no_request_is_none(run, text):
    (run / "request_save.json").write_text(text)
    assert StopFlag(Others(), run, Signals()).stop_request(1) is StopRequest.CONTINUE


def test_a_request_needs_a_run(tmp_path):
    with pytest.raises(ConfigError, match="is not a run directory: it has no config.yaml"):
        leave_request(tmp_path, Request(kind="save"))
