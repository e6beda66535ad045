"""The process that keepers are forked from: `python -m verl_hpc.rewards.sandbox.helper FD`."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from functools import partial

from verl_hpc.rewards.sandbox.keeper import Job, answer, run
from verl_hpc.runtime.helper_process import serve

if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), partial(answer, Job, run))
    with suppress(ChildProcessError):
        os.wait()  # for all keepers: they see that nobody waits for them, and clear up
