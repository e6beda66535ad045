"""The end of a rank, whatever threads its libraries and the user's code leave behind."""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time

from verl_hpc.cluster.verdict import listed
from verl_hpc.runtime.log_lines import stamped


def end_within(status: int, grace_s: float = 10.0) -> None:
    """Let Python end by itself, or end this process with `status` after `grace_s` seconds.

    Python waits for every thread that is no daemon, for ever where it must.
    """

    def end() -> None:
        time.sleep(grace_s)
        left = [t.name for t in threading.enumerate() if not t.daemon and t.is_alive()]
        names = [name for name in left if name != threading.main_thread().name]
        text = f"verl_hpc: done; threads that still run are ended: {listed(names)}\n"
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os.write(2, stamped(text).encode(errors="replace"))
        # With what C libraries do at the end: MPI takes leave of its launcher only there.
        ctypes.CDLL(None).exit(status)

    threading.Thread(target=end, name="verl_hpc-end", daemon=True).start()
