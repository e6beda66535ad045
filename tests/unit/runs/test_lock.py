"""Who may write to a run directory: one process, and at once the next when it is gone."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace

import pytest

from tests.unit.waiting import wait_for, within
from verl_hpc.config.regular_file import open_regular
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs import lock as run_lock
from verl_hpc.runs.lock import FILE, RunLock


@pytest.fixture
def hurried(monkeypatch):
    """Make all waits a hundred times shorter."""
    for name in ("BEAT_S", "STALE_S", "GRACE_S", "_LEAST_WATCH_S", "_PAUSE_S"):
        monkeypatch.setattr(run_lock, name, getattr(run_lock, name) / 100)


def never(words):
    raise AssertionError(f"asked Slurm: {words}")


def no_slurm(words):
    raise ClusterError("no Slurm here")


def leave(run, age_s=0.0, **facts):
    """A lock as another process has left it."""
    holder = replace(run_lock._myself(), token="other", **facts)
    (run / FILE).write_text(json.dumps(asdict(holder)))
    os.utime(run / FILE, (time.time() - age_s,) * 2)


ELSEWHERE = {"host": "far", "boot": "another", "pid": 7}


def test_it_is_there_while_a_run_lasts_and_renewed(tmp_path, hurried):
    with RunLock(tmp_path) as lock:
        lock.check()
        os.utime(tmp_path / FILE, (0, 0))
        wait_for(lambda: (tmp_path / FILE).stat().st_mtime != 0)
    assert list(tmp_path.iterdir()) == []


def test_files_that_killed_writers_have_left_are_removed(tmp_path):
    for folder in ("lives", "rows"):
        (tmp_path / folder).mkdir()
    written = (".ranks.json.1.new", "lives/.0.json.2.new", "rows/.Own-1.jsonl.4.new")
    for name in (*written, "new", ".ranks.json.3.new"):
        (tmp_path / name).touch()
        os.utime(tmp_path / name, (1, 1))
    (tmp_path / ".ranks.json.3.new").touch()
    with RunLock(tmp_path):
        left = {path.name for path in tmp_path.rglob("*")}
    assert left == {"lives", "rows", "new", ".ranks.json.3.new", FILE}, (
        "somebody may be writing one now"
    )


def test_a_second_process_is_refused_and_told_by_whom(tmp_path, hurried):
    with RunLock(tmp_path) as lock:
        told = rf"in use by process {os.getpid()} on .*another name"
        with pytest.raises(ConfigError, match=told):
            RunLock(tmp_path)
        lock.check()


HOLD = """
import sys, time
from pathlib import Path
from verl_hpc.runs.lock import RunLock
lock = RunLock(Path(sys.argv[1]))
print("held", flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("is_collected", [True, False])
def test_a_killed_process_does_not_hold_it(tmp_path, monkeypatch, is_collected):
    monkeypatch.setattr(run_lock, "_PAUSE_S", 0.01)
    words = [sys.executable, "-c", HOLD, str(tmp_path)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        process.send_signal(signal.SIGKILL)
        if is_collected:
            process.wait()
        with RunLock(tmp_path, never) as lock:
            lock.check()


def test_what_cannot_live_on_this_machine_does_not_hold_it(tmp_path):
    before = {"boot": "before"}
    for facts in ({"pid": 4_000_000}, {"born": 1}, before, before | {"job_id": "5"}):
        leave(tmp_path, **facts)
        RunLock(tmp_path, never).release()


def test_the_same_job_started_again_takes_it_at_once(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "12")
    leave(tmp_path, **ELSEWHERE, job_id="12", restarts=0)
    monkeypatch.setenv("SLURM_RESTART_COUNT", "1")
    RunLock(tmp_path, never).release()


@pytest.mark.parametrize(("state", "is_taken"), [("TIMEOUT", True), ("RUNNING", False)])
def test_slurm_knows_whether_another_job_is_over(tmp_path, hurried, state, is_taken):
    leave(tmp_path, **ELSEWHERE, job_id="12")
    refused = pytest.raises(ConfigError, match=r"in use by process 7 on far \(job 12, since")
    with renewed(tmp_path / FILE), nullcontext() if is_taken else refused:
        RunLock(tmp_path, lambda words: f"JobId=12 JobState={state}").release()


@contextmanager
def renewed(path):
    """A process elsewhere lives."""
    over = threading.Event()

    def work():
        while not over.wait(0.005) and path.exists():
            os.utime(path)

    thread = threading.Thread(target=work)
    thread.start()
    yield
    over.set()
    thread.join()


def test_a_process_elsewhere_that_renews_it_holds_it(tmp_path, hurried):
    leave(tmp_path, **ELSEWHERE)
    refused = pytest.raises(ConfigError, match="in use by process 7 on far")
    with renewed(tmp_path / FILE), refused:
        RunLock(tmp_path, no_slurm)


@pytest.mark.parametrize("age_s", [0, 1000, -1000])
def test_one_that_nobody_renews_is_taken_after_a_wait(tmp_path, hurried, age_s):
    leave(tmp_path, age_s, **ELSEWHERE, job_id="12")
    begin = time.monotonic()
    RunLock(tmp_path, no_slurm).release()
    assert time.monotonic() - begin >= run_lock._LEAST_WATCH_S


@pytest.mark.parametrize("text", ["", "{", "[]", '{"pid": 1}'])
def test_a_file_that_tells_nothing_is_taken_after_a_wait(tmp_path, hurried, text):
    (tmp_path / FILE).write_text(text)
    with RunLock(tmp_path, never) as lock:
        lock.check()


@pytest.mark.parametrize("name", [FILE, f".{FILE}.taking"])
@pytest.mark.parametrize("kind", ["directory", "link", "pipe", "unreadable"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, hurried, monkeypatch, name, kind):
    leave(tmp_path, pid=4_000_000)
    path = tmp_path / name
    path.unlink(missing_ok=True)
    if kind == "directory":
        path.mkdir()
    elif kind == "link":
        path.symlink_to("/nowhere/x")
    elif kind == "pipe":
        os.mkfifo(path)
    else:
        path.write_text("{}")
        monkeypatch.setattr(run_lock, "open_regular", denied_for(path))
    with pytest.raises(ConfigError, match=rf"{name}: cannot be read .*delete it"):
        within(3, RunLock, tmp_path, never)


def test_a_lock_that_cannot_be_removed_spoils_no_run(tmp_path, monkeypatch, caplog):
    def denied(path, **_):
        raise PermissionError(13, "Permission denied", str(path))

    with RunLock(tmp_path, never):
        monkeypatch.setattr(run_lock.Path, "unlink", denied)
    monkeypatch.undo()
    assert f"{tmp_path / FILE} cannot be removed: " in caplog.text


def denied_for(path):
    """To open files as another user, from whom one is kept."""

    def open_file(other):
        if other == path:
            raise PermissionError(13, "Permission denied", str(other))
        return open_regular(other)

    return open_file


def test_one_of_many_takes_a_stale_one(tmp_path, monkeypatch):
    """Each is a thread with a token of its own; all see the same stale file."""
    monkeypatch.setattr(run_lock, "_PAUSE_S", 0.001)
    monkeypatch.setattr(run_lock, "GRACE_S", 0.1)
    for _ in range(20):
        leave(tmp_path, pid=4_000_000)
        start = threading.Barrier(8)

        def take(_, start=start):
            start.wait()
            try:
                return RunLock(tmp_path, never)
            except ConfigError:
                return None

        with ThreadPoolExecutor(8) as pool:
            (held,) = filter(None, pool.map(take, range(8)))
        held.check()
        held.release()
        assert list(tmp_path.iterdir()) == []


def test_a_holder_notices_that_another_has_taken_over(tmp_path):
    with RunLock(tmp_path) as lock:
        leave(tmp_path, **ELSEWHERE)
        with pytest.raises(ConfigError, match="in use by process 7 on far"):
            lock.check()
    assert (tmp_path / FILE).exists(), "it took away what was not its own"
    (tmp_path / FILE).unlink()
