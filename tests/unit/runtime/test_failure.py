"""What a failing rank says, and how it ends the job."""

import io
import itertools
import os
import re
import sys
from functools import partial
from types import SimpleNamespace

import pytest

from verl_hpc.errors import ConfigError, TransferError
from verl_hpc.runtime.failure import FailureReporter, ending_the_job, install_excepthook
from verl_hpc.runtime.supervise import Note


@pytest.fixture(autouse=True)
def at_once(monkeypatch):
    """A rank that fails later does not wait for the report of the first: there is no other rank."""
    monkeypatch.setattr("verl_hpc.runtime.failure._GRACE_S", 0.0)


def store(failed_before=0, error=None):
    """A job's store: the number of failures counts up, or nobody answers."""
    count = itertools.count(failed_before + 1)

    def add(key, amount):
        assert (key, amount) == ("verl_hpc/failed", 1)
        if error is not None:
            raise error
        return next(count)

    return SimpleNamespace(add=add)


def reporter(**options):
    found = FailureReporter(3, 8, "node7")
    found.store = store(**options)
    found.stage = "rollout"
    return found


class Job:
    """A bootstrap that writes down what is asked of it."""

    def __init__(self, rank=0):
        self.rank, self.calls = rank, []
        self.meet = partial(self.calls.append, "meet")
        self.leave = partial(self.calls.append, "leave")

    def abort(self, code):
        self.calls.append(("abort", code))


def agreed(error):
    error.agreed = True
    return error


def raised(error):
    try:
        raise error
    except BaseException as caught:
        return caught


@pytest.fixture
def told(capfd):
    """What has been written to standard error since it was last asked for."""
    return lambda: capfd.readouterr().err


def test_the_first_failure_is_told_in_full(told):
    reporter().report(raised(ValueError("fragment 3 differs\nfrom 2")))
    text = told()
    first, second, *calls = text.strip().splitlines()
    cause = "ValueError: fragment 3 differs"
    assert first == f"verl_hpc: rank 3 of 8 on node7 failed in rollout: {cause}"
    assert second.startswith("Traceback")
    assert any("raise error" in line for line in calls), "with the lines of the traceback"
    assert calls[-2:] == [cause, "from 2"]
    # An error for users is told in words.
    reporter().report(raised(TransferError("fragment 3 differs\nfrom 2")))
    start = "\nverl_hpc: rank 3 of 8 on node7 failed in rollout: "
    assert told() == f"{start}TransferError: fragment 3 differs\nfrom 2\n"


def test_a_report_without_an_end_loses_its_middle(told):
    reporter().report(raised(ValueError("x" * 5_000_000)))
    text = told()
    assert len(text) < 70_000
    assert "characters are left out ...\n" in text
    assert text.startswith("\nverl_hpc: rank 3 of 8") and text.endswith("xxx\n")


def test_a_report_in_a_log_of_ranks_has_the_time_on_each_line(capfd, monkeypatch):
    monkeypatch.setenv("VERL_HPC_ATTEMPT", "/runs/run/job/attempts/0")
    reporter().report(raised(ValueError("bad")))
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) > 4
    assert all(re.match(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d ", line) for line in lines)


def test_later_failures_are_told_in_one_line(capfd):
    failed = reporter(failed_before=1)
    failed.report(raised(RuntimeError("Connection closed by peer\nand thirty more lines")))
    failed.report(raised(KeyError()))
    failed.report(raised(RuntimeError("x" * 500)))
    _, text = capfd.readouterr()
    first, second, third = text.splitlines()
    start = "verl_hpc: rank 3 of 8 on node7 ended after another rank failed "
    assert first == f"{start}(RuntimeError: Connection closed by peer)"
    assert second == f"{start}(KeyError: )"
    assert third.startswith(f"{start}(RuntimeError: xxx")
    assert len(third) < 300


def test_of_two_ranks_only_one_is_first(capfd):
    shared = store()
    for rank in (5, 2):
        failed = FailureReporter(rank, 8, "node0")
        failed.store = shared
        failed.report(ValueError("bad"))
    _, text = capfd.readouterr()
    assert text.count("failed in start-up") == 1
    assert "rank 5 of 8 on node0 failed" in text
    assert "rank 2 of 8 on node0 ended after another rank failed (ValueError: bad)" in text


def test_failures_that_the_store_does_not_count(capfd):
    reporter(error=RuntimeError("Connection reset")).report(ValueError("late"))
    FailureReporter(0, 1, "laptop").report(ValueError("file \udcff"))
    text = capfd.readouterr().err
    assert "ended after another rank failed (ValueError: late)" in text, "its store is gone"
    assert "rank 0 of 1 on laptop failed in start-up: ValueError: file ?" in text, "it has none"


LEAVES = [*map(SystemExit, (0, 3)), ValueError("bad"), KeyboardInterrupt(), ConfigError("one")]


@pytest.mark.parametrize("error", LEAVES)
def test_an_exception_or_an_exit_aborts_every_rank(capfd, error):
    job = Job()
    with ending_the_job(job, reporter()):
        pass
    assert (job.calls, capfd.readouterr().err) == ([], ""), "an end without one is no failure"
    with ending_the_job(job, reporter()):
        raise error
    assert job.calls == [("abort", 1)]
    text = capfd.readouterr().err
    assert "failed in rollout" in text and f"{type(error).__name__}: {error}".strip(": ") in text


@pytest.mark.parametrize("rank, text", [(0, "ConfigError: steps = 0\n"), (3, "")])
def test_an_error_that_all_ranks_raise_is_told_once_without_traceback(capfd, rank, text):
    job = Job(rank)
    failed = FailureReporter(rank, 8, "node7")
    with pytest.raises(SystemExit) as ended, ending_the_job(job, failed):
        raise agreed(ConfigError("steps = 0"))
    assert ended.value.code == 1
    assert job.calls == ["meet", "leave"], "nobody leaves before rank 0 has spoken"
    assert capfd.readouterr().err == text


def test_a_report_that_nobody_can_read_is_left_to_the_parent(monkeypatch):
    def closed(*_):
        raise OSError

    note = Note()
    failed = FailureReporter(0, 1, "laptop", note)
    failed.enter("reward")
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", closed)
        failed.report(ValueError("bad"))
        with pytest.raises(SystemExit), ending_the_job(Job(), failed):
            raise agreed(ConfigError("steps = 0"))
    assert (note.stage, note.state) == ("reward", 0)
    failed.report(ValueError("bad"))
    assert note.state == 1


@pytest.mark.parametrize("stream", [None, io.StringIO(), SimpleNamespace(fileno=lambda: 9999)])
def test_a_report_comes_whatever_the_streams_are(capfd, monkeypatch, stream):
    note = Note()
    failed = FailureReporter(0, 1, "laptop", note)
    monkeypatch.setattr(sys, "stdout", stream)
    monkeypatch.setattr(sys, "stderr", stream)
    with pytest.raises(SystemExit), ending_the_job(Job(), failed):
        raise agreed(ConfigError("steps = 0"))
    assert note.state == 1
    failed.report(KeyboardInterrupt())
    text = capfd.readouterr().err
    assert "ConfigError: steps = 0\n" in text and "failed in start-up: KeyboardInterrupt" in text


def test_the_interpreters_hook_ends_the_job_too(monkeypatch, capfd):
    monkeypatch.setattr(sys, "excepthook", sys.excepthook)
    job = Job()
    install_excepthook(job, reporter())
    error = raised(ValueError("in a callback"))
    sys.excepthook(ValueError, error, error.__traceback__)
    assert job.calls == [("abort", 1)]
    text = capfd.readouterr().err
    assert "failed in rollout" in text
    assert "raise error" in text
