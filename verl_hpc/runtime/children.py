"""Processes that the user's code and libraries start in a rank."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_NOTED = (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2)
_LOOK_EVERY_S = 0.02


def fork_without_handlers() -> None:
    """From now on signals do to forked processes what they do to any process; once a process.

    A rank only notes them: a pool that terminates its workers would wait for ever.
    """

    def block() -> None:
        # One that comes before the child is ready would be noted, too.
        signal.pthread_sigmask(signal.SIG_BLOCK, _NOTED)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _NOTED)

    def forget_handlers() -> None:
        for number in _NOTED:
            signal.signal(number, signal.SIG_DFL)
        unblock()

    os.register_at_fork(before=block, after_in_parent=unblock, after_in_child=forget_handlers)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def wait_for(child: int) -> int:
    """Wait until a child ends, also for others that do so before; return its exit code."""
    while True:
        process, status = os.waitpid(-1, 0)
        if process == child:
            return os.waitstatus_to_exitcode(status)


def end_children(grace_s: float) -> list[str]:
    """Wait for all children; kill those that are left after `grace_s`, and then their children.

    A launcher waits for all processes that hold the rank's output.

    Returns:
        Names and numbers of those that were killed.
    """
    killed: dict[int, str] = {}
    while not _all_end_within(grace_s):
        found = [child for child in _children() if child not in killed]
        if not found:
            break
        for child in found:
            with contextlib.suppress(OSError):
                name = Path(f"/proc/{child}/comm").read_text(errors="replace").strip()
                killed[child] = f"{name} ({child})"
                os.kill(child, signal.SIGKILL)
    return list(killed.values())


def _children() -> list[int]:
    process = os.getpid()
    try:
        text = Path(f"/proc/{process}/task/{process}/children").read_text()
    except OSError:  # not every kernel has this file
        return []
    return [int(child) for child in text.split()]


def _all_end_within(seconds: float) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            process, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return True
        if process == 0:
            time.sleep(_LOOK_EVERY_S)
    return False
