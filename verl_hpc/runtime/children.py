"""Processes that the user's code and libraries start in a rank."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import threading
import time
from pathlib import Path

from verl_hpc.runtime.processes import children

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_NOTED = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""What a rank notes, and acts on at the end of its step."""
_LOOK_EVERY_S = 0.02


def fork_without_handlers() -> None:
    """From now on forked processes have no handlers of the rank's signals; once a process.

    SIGTERM ends them, or a pool that terminates its workers would hang. Slurm's warnings
    and Ctrl-C do nothing to them: some sites, and every terminal, send them to all processes, and
    the rank needs its workers until the end of its step.
    """
    masks = threading.local()

    def block() -> None:
        # One that comes before the child is ready would be noted, too.
        masks.before = signal.pthread_sigmask(signal.SIG_BLOCK, _NOTED)

    def restore() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, masks.before)

    def forget_handlers() -> None:
        for number in _NOTED:
            ends = number == signal.SIGTERM
            signal.signal(number, signal.SIG_DFL if ends else signal.SIG_IGN)
        restore()

    os.register_at_fork(before=block, after_in_parent=restore, after_in_child=forget_handlers)


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with_parent(parent: int | None = None) -> None:
    """Have the kernel kill this process when its parent ends.

    Args:
        parent: ends this process now if its parent is another by now.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    if parent not in (None, os.getppid()):
        os._exit(1)


def wait_for(child: int) -> int:
    """Wait until a child ends, also for others that do so before; return its exit code."""
    while True:
        process, status = os.waitpid(-1, 0)
        if process == child:
            return os.waitstatus_to_exitcode(status)


def end_children(grace_s: float) -> list[str]:
    """Wait for all children; end those that are left after `grace_s`, and then their children:
    with SIGTERM, and as long after that with SIGKILL.

    A launcher waits for all processes that hold the rank's output.

    Returns:
        Names and numbers of those that were ended, but for the package's own helpers: they end by
        themselves, on a busy machine a little later.
    """
    asked: dict[int, str] = {}
    killed: set[int] = set()
    while not _all_end_within(grace_s):
        left = [child for child in children(os.getpid()) if child not in killed]
        if not left:
            break
        for child in left:
            with contextlib.suppress(OSError):
                if child in asked:
                    killed.add(child)
                    os.kill(child, signal.SIGKILL)
                    continue
                asked[child] = "" if _is_helper(child) else _name(child)
                os.kill(child, signal.SIGTERM)
    return [name for name in asked.values() if name]


def _name(child: int) -> str:
    name = Path(f"/proc/{child}/comm").read_text(errors="replace").strip()
    return f"{name} ({child})"


def _is_helper(child: int) -> bool:
    """Whether `helper_process` has started it, or it is a fork of such a one."""
    words = Path(f"/proc/{child}/cmdline").read_bytes().split(b"\0")
    return words[1:2] == [b"-m"] and words[2].startswith(b"verl_hpc.")


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
