"""The end of a rank, whatever threads its libraries and the user's code leave behind."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import threading
import time

from verl_hpc.runs.verdict import listed
from verl_hpc.runtime.log_lines import stamped


def end_within(status: int, grace_s: float = 10.0) -> None:
    """Let Python end by itself, or end this process with `status` after `grace_s` seconds.

    Python waits for non-daemon threads and atexit functions, forever if it must.
    """

    def end() -> None:
        time.sleep(grace_s)
        # Code of the user may have closed them, or put anything in their place.
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        with contextlib.suppress(Exception):
            sys.stderr.flush()
        with contextlib.suppress(OSError):
            os.write(2, stamped(f"verl_hpc: at the end {_left()}\n").encode(errors="replace"))
        # With what C libraries do at the end: MPI takes leave of its launcher only there.
        ctypes.CDLL(None).exit(status)

    threading.Thread(target=end, name="verl_hpc-end", daemon=True).start()


def _left() -> str:
    left = [t.name for t in threading.enumerate() if not t.daemon and t.is_alive()]
    names = [name for name in left if name != threading.main_thread().name]
    if names:
        return f"threads still run, and are ended: {listed(names)}"
    return "a function of atexit, or a process that it waits for, still runs, and is ended"
