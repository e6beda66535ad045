"""The process that keepers are forked from: `python -m verl_hpc.rewards.sandbox.helper FD`.

Each message on the socket FD brings one end of another socket, by which a keeper is given its job
and says its result. The helper ends when FD closes.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import asdict

from verl_hpc.rewards.sandbox.keeper import AbandonedError, run
from verl_hpc.rewards.sandbox.messages import Answer, read_job, receive, send

_PR_SET_PDEATHSIG = 1


def serve(patrons: socket.socket) -> None:
    """Fork a keeper for every socket that comes."""
    # Those that end are forgotten.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Of a terminal, and Slurm's warnings: the rank says when this ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        _, fds, _, _ = socket.recv_fds(patrons, 1, 1)
        if not fds:
            break
        with socket.socket(fileno=fds[0]) as patron:
            if os.fork() == 0:
                patrons.close()
                _keep(patron)
    with suppress(ChildProcessError):
        os.wait()  # for all: they see that nobody waits for them, and clear up


def _keep(patron: socket.socket) -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL))
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    try:
        answer = Answer(result=run(read_job(receive(patron)), patron))
    except (AbandonedError, EOFError):
        os._exit(0)
    except Exception as error:
        answer = Answer(failure=f"{type(error).__name__}: {error}")
    send(patron, asdict(answer))
    os._exit(0)


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])))
