"""A parent of the rank that notices how it ends.

os._exit, the exit of C and signals end a process without any of its code. A launcher takes status
0 for success, and other ranks wait for the one that is gone. A parent, forked before MPI starts,
gives such an end a status and words.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NoReturn

from verl_hpc.runs.stacks.stack import stack_file
from verl_hpc.runs.verdict import listed
from verl_hpc.runtime import environment
from verl_hpc.runtime.children import (
    adopt_orphans,
    end_children,
    end_with_parent,
    fork_without_handlers,
    wait_for,
)
from verl_hpc.runtime.log_lines import stamped
from verl_hpc.runtime.stand_in import PASSED_ON, end_by

_RUNNING, _TOLD, _DONE = range(3)
_SIZE = 256
_BY_THE_LAUNCHER = (signal.SIGKILL, signal.SIGTERM)
_GRACE_S = 1.0
_CRASH = b"Fatal Python error: "
_MOST_CRASH_BYTES = 64 * 1024


class Note:
    """What a rank and its parent both see: a piece of shared memory."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SIZE)

    def enter(self, stage: str) -> None:
        """Say what the rank does now."""
        self._memory[1:] = stage.encode(errors="replace")[: _SIZE - 1].ljust(_SIZE - 1, b"\0")

    def told(self) -> None:
        """Say that this rank has reported its failure."""
        self._memory[0] = _TOLD

    def done(self) -> None:
        """Say that this rank ends as it should."""
        self._memory[0] = _DONE

    @property
    def state(self) -> int:
        return self._memory[0]

    @property
    def stage(self) -> str:
        return self._memory[1:].rstrip(b"\0").decode(errors="replace") or "start-up"


@contextmanager
def supervised(run_directory: Path) -> Iterator[Note]:
    """Continue in a child; this process waits for it, forwards signals, and never returns.

    It ends as the child does: with its status, which is never 0 unless the body has ended, or by
    its signal. A silent end is reported on stderr, with the stacks of a crash where there
    are any. Processes that the child leaves running are ended.

    Args:
        run_directory: where a rank leaves its stacks.
    """
    note = Note()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    # A signal that comes now is delivered once a handler is installed.
    signal.pthread_sigmask(signal.SIG_BLOCK, PASSED_ON)
    adopt_orphans()
    parent = os.getpid()
    child = os.fork()
    if child:
        _wait(child, note, run_directory)
    end_with_parent(parent)
    fork_without_handlers()
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    faulthandler.enable()
    try:
        yield note
    except SystemExit:
        # Whoever raised it has noted whether it was told why.
        raise
    except BaseException:
        note.told()
        raise
    note.done()


def _wait(child: int, note: Note, run_directory: Path) -> NoReturn:
    def pass_on(number: int, _: object) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, number)

    for number in PASSED_ON:
        signal.signal(number, pass_on)
    # A terminal sends it to the child, too.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, PASSED_ON)
    code = wait_for(child)
    if -code in _BY_THE_LAUNCHER:
        # It may be ending the whole job, this process next: that is expected.
        time.sleep(_GRACE_S)
    who = f"rank {environment.launcher_rank()} on {socket.gethostname()}"
    # Who has pressed Ctrl-C twice knows why it ends.
    if code != -signal.SIGINT and _is_silent(code, note.state):
        _tell(f"\nverl_hpc: {who} failed in {note.stage}: {_how(code)}\n", _crash(run_directory))
    if ended := end_children(_GRACE_S):
        _tell(f"verl_hpc: {who}: processes that it has left are ended: {listed(ended)}\n")
    if code < 0:
        end_by(-code)
        os._exit(128 - code)
    os._exit(code if note.state == _DONE else code or 1)


def _tell(text: str, crash: bytes = b"") -> None:
    os.write(2, stamped(text).encode(errors="replace") + crash)


def _is_silent(code: int, state: int) -> bool:
    """Whether no rank has reported yet why this one is gone."""
    return state == _RUNNING or (code < 0 and state == _DONE)


def _how(code: int) -> str:
    if code >= 0:
        return (
            f"it left with status {code} and no message; a reward function or a library has "
            "called os._exit, or exit in native code"
        )
    name = signal.Signals(-code).name
    hint = "; the node may be out of memory" if -code == signal.SIGKILL else ""
    return f"it was ended by {name}{hint}"


def _crash(run_directory: Path) -> bytes:
    """What faulthandler has written of a crash in native code."""
    try:
        text = stack_file(run_directory, environment.launcher_rank()).read_bytes()
    except OSError:
        return b""
    start = text.rfind(_CRASH)
    return text[start:][:_MOST_CRASH_BYTES] if start >= 0 else b""
