"""`breakpoint()` in a rank of several, which has no terminal: it waits for `attach`, then stops.

Python's own would read commands from an input that has ended, and end the run.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import FrameType
from typing import Any

from verl_hpc.runtime.world import World

_BETWEEN_LOOKS_S = 0.2


class Breakpoints:
    """What `breakpoint()` does in this rank.

    Args:
        world: of the job.
        run_directory: where `attach` finds the run.
        collective_timeout_s: how long other ranks wait for one that stands. Half of it this one
            waits for a debugger; then it continues, and skips all later breakpoints.
    """

    def __init__(self, world: World, run_directory: Path, collective_timeout_s: float) -> None:
        self._world = world
        self._directory = run_directory
        self._timeout_s = collective_timeout_s
        self._passed_by = False
        self._write: Callable[[str], object] = sys.stderr.write

    def install(self) -> None:
        """Unless the environment says PYTHONBREAKPOINT, or one rank at a terminal has pdb."""
        at_terminal = self._world.size == 1 and sys.stdin is not None and sys.stdin.isatty()
        if not at_terminal and "PYTHONBREAKPOINT" not in os.environ:
            sys.breakpointhook = self

    def __call__(self, *_: Any, **__: Any) -> None:
        """Wait for a debugger, and stop at the line that called `breakpoint`.

        A time limit around that line ends here: debugging takes time.
        """
        frame = sys._getframe(1)
        if self._passed_by:
            return
        place = f"{frame.f_code.co_filename}:{frame.f_lineno}, in {frame.f_code.co_name}"
        if find_spec("debugpy") is None:
            self._passed_by = True
            self._say(f"passes by breakpoint() at {place}: pip install debugpy to stop there")
            return
        signal.setitimer(signal.ITIMER_REAL, 0)
        if not _is_attached() and not self._wait(place):
            return
        self._say(
            f"stops at {place}; the other ranks wait for it, up to runtime.collective_timeout_s = "
            f"{self._timeout_s:g} s, which then ends the run"
        )
        _stop(frame)

    def _wait(self, place: str) -> bool:
        """True once a debugger is there."""
        patience = self._timeout_s / 2
        rank = self._world.rank
        self._say(
            f"waits at breakpoint(), {place}, for a debugger, at most {patience:g} s (half of "
            "runtime.collective_timeout_s):\n"
            f"  python -m verl_hpc attach {shlex.quote(str(self._directory))} --rank {rank}"
        )
        deadline = time.monotonic() + patience
        while not _is_attached():
            if time.monotonic() > deadline:
                self._passed_by = True
                self._say("continues without a debugger, and skips all breakpoints from now on")
                return False
            time.sleep(_BETWEEN_LOOKS_S)
        return True

    def _say(self, text: str) -> None:
        # One write: lines of several ranks share the terminal.
        self._write(f"verl_hpc: rank {self._world.rank} on {self._world.host} {text}\n")


def _is_attached() -> bool:
    """Whether a client of the debugger, which the watchdog's thread starts, has connected."""
    # That thread may be in the middle of importing it.
    is_attached = getattr(sys.modules.get("pydevd"), "_is_attached", None)
    return is_attached is not None and bool(is_attached())


def _stop(frame: FrameType) -> None:
    import pydevd

    pydevd.settrace(
        suspend=True,
        trace_only_current_thread=True,
        patch_multiprocessing=False,
        stop_at_frame=frame,
    )
