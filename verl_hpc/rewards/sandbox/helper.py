"""The process that keepers are forked from: `python -m verl_hpc.rewards.sandbox.helper FD`."""

from __future__ import annotations

import os
import socket
import sys
from contextlib import suppress
from dataclasses import asdict

from verl_hpc.rewards.sandbox.containment import Answer
from verl_hpc.rewards.sandbox.keeper import AbandonedError, Job, run
from verl_hpc.runs.records import as_record
from verl_hpc.runtime.helper_process import serve
from verl_hpc.runtime.messages import receive, send


def keep(patron: socket.socket) -> None:
    """Be the keeper of one program, and send back its result."""
    try:
        answer = Answer(result=run(as_record(receive(patron), Job), patron))
    except (AbandonedError, EOFError):
        os._exit(0)
    except Exception as error:
        answer = Answer(failure=f"{type(error).__name__}: {error}")
    send(patron, asdict(answer))


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), keep)
    with suppress(ChildProcessError):
        os.wait()  # for all keepers: they see that nobody waits for them, and clear up
