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
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

from verl_hpc.errors import VerlHpcError
from verl_hpc.package import FOLDER
from verl_hpc.runtime import environment
from verl_hpc.runtime.children import adopt_orphans, end_with_parent
from verl_hpc.runtime.messages import receive, send
from verl_hpc.runtime.processes import end_all

T = TypeVar("T")


@dataclass(frozen=True)
class Helper:
    """A helper, as the process that has started it sees it."""

    process: subprocess.Popen[bytes]
    connection: socket.socket
    """It ends when this closes."""

    def failure(self, what: str, within_s: float) -> str:
        """Wait until it has made what its children share; return why it could not, or nothing.

        Args:
            what: the helper, for a message of its end.
            within_s: longest time to wait.
        """
        self.connection.settimeout(within_s)
        try:
            failure: str = receive(self.connection)["failure"]
        except (EOFError, OSError) as error:
            failure = f"{what} has ended, or takes too long ({type(error).__name__})"
        self.connection.settimeout(None)
        return failure

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


def start_for_user(module: str, settings: Any) -> Helper:
    """Start a helper that runs code of the user, and send it its settings, which are JSON.

    Args:
        module: its main calls `serve_made`.
        settings: what it makes its children's work from.
    """
    helper = start(module, environment.for_tools(FOLDER.parent), prints=True)
    send(helper.connection, settings)
    return helper


def serve_made(
    patrons: socket.socket, make: Callable[[Any], T], work: Callable[[T, socket.socket], None]
) -> None:
    """Make what the children share, report success or failure, and serve; then end all children.

    A child leads a process group, whose number it sends first, and which ends with it: processes
    that code of the user starts are in it.

    Args:
        patrons: socket of the process that has started this one.
        make: called with the settings; may raise a `VerlHpcError`.
        work: work of a child, with what was made and its socket.
    """
    try:
        made = make(receive(patrons))
    except VerlHpcError as error:
        send(patrons, {"failure": str(error)})
        return
    send(patrons, {"failure": ""})
    # Orphans become children of this process, whatever their parents do.
    adopt_orphans()

    def lead_group(patron: socket.socket) -> None:
        os.setsid()
        try:
            send(patron, {"process": os.getpid()})
            work(made, patron)
        finally:
            os.killpg(0, signal.SIGKILL)

    serve(patrons, lead_group)
    end_all(os.getpid())


def end_group(process: int) -> None:
    """End a child of `serve_made` by the number that it has sent, with what it has started."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(process, signal.SIGKILL)


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
                end_with_parent()
                _run(patron, work)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)


def _run(patron: socket.socket, work: Callable[[socket.socket], None]) -> None:
    # Some sites warn all processes of a job with SIGUSR1 or SIGUSR2, which stay ignored: the rank
    # needs this process until its step ends.
    for number in (signal.SIGCHLD, signal.SIGTERM):
        signal.signal(number, signal.SIG_DFL)
    status = 1
    try:
        work(patron)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
