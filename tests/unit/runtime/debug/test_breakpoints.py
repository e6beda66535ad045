"""What breakpoint() does in a rank: wait for a debugger, or say why not."""

import io
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.debug_client import Client
from verl_hpc.runs.attach import ask_for_debugger, read_answer
from verl_hpc.runtime.debug import breakpoints
from verl_hpc.runtime.debug.breakpoints import Breakpoints
from verl_hpc.runtime.limit import time_limit


@pytest.fixture
def rank(tmp_path, monkeypatch):
    """Breakpoints of rank 3 of 4 that write into `said`."""
    monkeypatch.setattr(sys, "breakpointhook", sys.__breakpointhook__)
    monkeypatch.delenv("PYTHONBREAKPOINT", raising=False)
    monkeypatch.setattr(breakpoints, "_BETWEEN_LOOKS_S", 0.01)
    found = Breakpoints(SimpleNamespace(rank=3, size=4, host="n7"), tmp_path / "my run", 0.2)
    found.said = []
    found._write = found.said.append
    return found


def code_of_the_user():
    breakpoint()  # noqa: T100
    return 7


def test_it_says_how_to_attach_and_goes_on_where_nobody_comes(rank, tmp_path, monkeypatch):
    monkeypatch.setattr(breakpoints, "find_spec", lambda _: True)
    monkeypatch.setattr(breakpoints, "_is_attached", lambda: False)
    rank.install()
    assert code_of_the_user() == 7
    waits, goes_on = rank.said
    line = code_of_the_user.__code__.co_firstlineno + 1
    assert waits.startswith(
        f"verl_hpc: rank 3 on n7 waits at breakpoint(), {__file__}:{line}, in code_of_the_user, "
        "for a debugger, at most 0.1 s"
    )
    assert waits.endswith(f"\n  python -m verl_hpc attach '{tmp_path}/my run' --rank 3\n")
    assert goes_on.endswith("skips all breakpoints from now on\n")
    assert (code_of_the_user(), len(rank.said)) == (7, 2)


def test_it_stops_in_the_callers_frame_without_a_time_limit(rank, monkeypatch):
    stopped, answers = [], iter([False, False, True])
    monkeypatch.setattr(breakpoints, "find_spec", lambda _: True)
    monkeypatch.setattr(breakpoints, "_is_attached", lambda: next(answers))
    monkeypatch.setattr(breakpoints, "_stop", stopped.append)
    rank.install()
    with time_limit(60):
        code_of_the_user()
        assert signal.getitimer(signal.ITIMER_REAL)[0] == 0
    assert [frame.f_code for frame in stopped] == [code_of_the_user.__code__]
    assert "the other ranks wait for it, up to runtime.collective_timeout_s = 0.2 s" in rank.said[1]


def test_without_a_debugger_it_is_passed_by_and_said_once(rank, monkeypatch):
    monkeypatch.setattr(breakpoints, "find_spec", lambda _: None)
    rank.install()
    assert code_of_the_user() == code_of_the_user() == 7
    (text,) = rank.said
    assert "passes by breakpoint() at" in text and "pip install debugpy" in text


CHOICES = [
    (4, False, None, True),
    (1, True, None, False),
    (1, False, None, True),
    (4, False, "0", False),
]


@pytest.mark.parametrize("size, terminal, variable, installed", CHOICES)
def test_pdb_stays_at_a_terminal_and_where_the_user_chose(
    rank, monkeypatch, size, terminal, variable, installed
):
    rank._world.size = size
    stdin = io.StringIO()
    stdin.isatty = lambda: terminal
    monkeypatch.setattr(sys, "stdin", stdin)
    if variable is not None:
        monkeypatch.setenv("PYTHONBREAKPOINT", variable)
    rank.install()
    assert (sys.breakpointhook is rank) == installed


RANK = """
import sys, threading, time
from pathlib import Path
from types import SimpleNamespace

from tests.unit.runtime.debug.test_attach import Store
from verl_hpc.runtime.limit import time_limit
from verl_hpc.runtime.debug.attach import Attachments
from verl_hpc.runtime.debug.breakpoints import Breakpoints
from verl_hpc.runtime.debug.debugger import hide_from_debugger

world = SimpleNamespace(rank=0, size=2, host="n7")
here = Attachments(world, Path(sys.argv[1]))
store = Store()


def watch():
    while True:
        here.look(store)
        time.sleep(0.1)


watchdog = threading.Thread(target=watch, daemon=True)
hide_from_debugger(watchdog)
watchdog.start()
Breakpoints(world, Path(sys.argv[1]), 240.0).install()


def compute_score(response, reference):
    answer = response + reference
    breakpoint()
    return answer  # here


for response in (1, 2):
    with time_limit(0.5):
        print("score", compute_score(response, 40), flush=True)
"""


@pytest.mark.skipif(find_spec("debugpy") is None, reason="debugpy is not installed")
def test_a_debugger_that_attaches_stops_at_every_breakpoint(tmp_path):
    """Its standard input has ended, as under mpiexec; it stands longer than its time limit."""
    script = tmp_path / "rank.py"
    script.write_text(RANK)
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONBREAKPOINT"}
    rank = subprocess.Popen(
        [sys.executable, script, tmp_path],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=environment | {"PYTHONPATH": str(Path.cwd())},
    )
    try:
        assert "waits at breakpoint()" in rank.stderr.readline()
        assert f"python -m verl_hpc attach {tmp_path} --rank 0" in rank.stderr.readline()
        request = ask_for_debugger(tmp_path, 0)
        while (answer := read_answer(tmp_path, 0, request)) is None and rank.poll() is None:
            time.sleep(0.1)
        assert answer is not None and not answer.error, rank.communicate()[1]
        assert look(answer.port) == ["41", "42"]
        output, errors = rank.communicate(timeout=60)
    finally:
        rank.kill()
    assert (rank.returncode, output) == (0, "score 41\nscore 42\n"), errors
    assert errors.count("stops at") == 2


def look(port):
    """What `answer` is at each of the two stops."""
    client = Client(port)
    client.attach()
    line = 1 + RANK.splitlines().index("    return answer  # here")
    values = []
    for _ in range(2):
        stopped, frame = client.stop()
        assert (frame["name"], frame["line"]) == ("compute_score", line)
        time.sleep(1.0)
        value = client.ask("evaluate", expression="answer", frameId=frame["id"], context="watch")
        values.append(value["result"])
        client.ask("continue", threadId=stopped["threadId"])
    client.close()
    return values
