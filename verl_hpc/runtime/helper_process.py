"""A process that forks others for this one, which has threads and MPI and must not fork.

It is executed, not forked: it starts with an empty memory and none of our descriptors.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from verl_hpc.runtime.children import end_with_parent


@dataclass(frozen=True)
class Helper:
    """A helper, as the process that has started it sees it."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    """It ends when this closes."""

    def connect(self) -> socket.socket:
        """Have it fork a child, which serves the other end of this socket.

        Raises:
            OSError: it is gone.
        """
        ours, its = socket.socketpair()
        with its:
            try:
                socket.send_fds(self.connection, [b"."], [its.fileno()])
            except OSError:
                ours.close()
                raise
        return ours


def start(
    module: str, variables: Mapping[str, str], cwd: str | None = None, *, prints: bool = False
) -> Helper:
    """Run `python -m module FD`, whose FD is the other end of its socket.

    Args:
        module: its main calls `serve`.
        variables: its environment.
        cwd: where it is; None is here.
        prints: to where this process prints; else to nowhere.
    """
    ours, its = socket.socketpair()
    with its:
        process = subprocess.Popen(
            [sys.executable, "-m", module, str(its.fileno())],
            pass_fds=[its.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=None if prints else subprocess.DEVNULL,
            env=dict(variables),
            cwd=cwd,
            start_new_session=True,
        )
    return Helper(process, ours)


def serve(patrons: socket.socket, work: Callable[[socket.socket], None]) -> None:
    """Fork a child for every socket that comes, which does the work and ends.

    Each message on `patrons` brings one end of such a socket; this ends when it closes.
    """
    # Those that end are forgotten, until `serve` ends: who ends the others waits for one at a time.
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    # Of a terminal, and Slurm's warnings: the rank says when this ends.
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    while True:
        try:
            _, fds, _, _ = socket.recv_fds(patrons, 1, 1)
        except ConnectionResetError:  # closed, and what this had said was never read
            break
        if not fds:
            break
        with socket.socket(fileno=fds[0]) as patron:
            if os.fork() == 0:
                patrons.close()
                _run(patron, work)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _run(patron: socket.socket, work: Callable[[socket.socket], None]) -> None:
    end_with_parent()
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
        signal.signal(number, signal.SIG_DFL)
    status = 1
    try:
        work(patron)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
