"""Programs as a rank sees them: started by a helper process, looked after and ended by a keeper."""

from __future__ import annotations

import signal
import socket
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from secrets import token_hex
from typing import Literal
from weakref import WeakSet

from verl_hpc.agents.held import hold
from verl_hpc.errors import SandboxError
from verl_hpc.package import FOLDER
from verl_hpc.rewards.sandbox.containment import Ending, Limits
from verl_hpc.rewards.sandbox.keeper import remove_directory
from verl_hpc.runs.records import as_record
from verl_hpc.runtime import environment, helper_process
from verl_hpc.runtime.messages import receive, send

_ENDS_WITHIN_S = 60.0
_KEEPER_GONE = (
    "with the process that looks after it, which is gone; is the node out of memory or processes?"
)


@dataclass(frozen=True)
class Scorer:
    """A command that scores a program after its end: where the program ran, on what it has left in
    its directory, but in another sandbox, and without a model."""

    command: Sequence[str]
    row: str
    """JSON text of the file that VERL_HPC_ROW names; the program's own is not left."""
    directory: str | None
    """Where it starts, and what it may read besides; the program sees nothing of it."""


@dataclass(frozen=True)
class ProgramJob:
    """A program to run, which speaks to a model endpoint.

    It finds the endpoint in OPENAI_BASE_URL and ANTHROPIC_BASE_URL, and a directory of its own,
    which is removed after it, in HOME and TMPDIR.
    """

    command: Sequence[str]
    """Words, run without a shell; the rank's interpreter comes first in PATH."""
    row: str
    """JSON text of the file that VERL_HPC_ROW names."""
    socket: str
    """Path of the endpoint's Unix socket on this node."""
    token: str
    """Key of its session: OPENAI_API_KEY and ANTHROPIC_API_KEY."""
    sandbox: Literal["none", "bubblewrap"]
    """none: it may do what this user may, and gets the rank's variables but those of launchers.
    bubblewrap: it has namespaces of its own, and reads the system and the interpreter."""
    network: Literal["none", "node"]
    """none: under bubblewrap it reaches its endpoint alone."""
    directory: str | None
    """Absolute path of a directory where it starts, and which it may read under bubblewrap; None
    starts it in its own."""
    paths: Sequence[str]
    """Absolute paths of further directories that it may read under bubblewrap."""
    limits: Limits
    """Limits of all its processes together. Each open connection to the endpoint counts as two
    tasks; memory that processes share counts for each of them; its error output is part of its
    output; `files_bytes` is for its directory, and as much again for /dev/shm, but without a
    sandbox for each file."""
    image: str | None = None
    """Root directory of the files that it sees under bubblewrap, or a .sif or .sqsh file of them,
    the one that the helper was started with; None is the system's."""
    scorer: Scorer | None = None
    """Writes the score, instead of the program, if the program has exited with status 0."""


@dataclass(frozen=True)
class Ended:
    """The end of a program. None of its processes and files is left."""

    ending: Ending
    """killed: its first process, by a signal that no limit sends, or a process that looks after it,
    and it with that one."""
    status: int
    """Exit status of its first process where it exited, 127 where there is no such command, the
    number of the signal where it was killed, else 0. As in a shell, statuses above 128 are those
    of killed ones."""
    output: str
    """Output and error output. Bytes that are not UTF-8 are replaced."""
    score: str | None
    """Content of the file that VERL_HPC_SCORE names, at most 1 MiB; None if the program has
    written none or has not exited by itself."""
    wall_s: float
    """Seconds from its start to its end."""
    message: str
    """The limit that it exceeded, what is wrong with its score's file, or what killed it."""


class Program:
    """A program under way. It ends when this is closed, or the rank ends."""

    def __init__(self, connection: socket.socket, programs: Programs) -> None:
        self._socket, self._programs, self._begun = connection, programs, time.monotonic()

    def fileno(self) -> int:
        """Readable once `ended` returns or raises."""
        return self._socket.fileno()

    def ended(self) -> Ended | None:
        """Return how the program has ended; None if it is under way.

        Raises:
            SandboxError: it could not be run, or the helper is gone, which says nothing about the
                program.
        """
        try:
            self._socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
            answer = receive(self._socket)
        except BlockingIOError:
            return None
        except (EOFError, OSError):
            self._programs.check()
            wall_s = time.monotonic() - self._begun
            return Ended("killed", signal.SIGKILL, "", None, wall_s, _KEEPER_GONE)
        if answer["failure"]:
            raise SandboxError(f"a program could not be run: {answer['failure']}")
        return as_record(answer["result"], Ended)

    def end(self) -> None:
        """Have all its processes killed and its files removed; this does not wait for it."""
        self._socket.close()


class Programs:
    """Starts programs on this node by a helper process, which is started here, before MPI."""

    def __init__(self, image: str | None = None) -> None:
        self._held = hold(token_hex(6))
        self.directory = str(self._held.path)
        """Directory of this node that is removed after this process, however that ends."""
        variables = environment.for_tools(FOLDER.parent) | {"TMPDIR": self.directory}
        self._helper = helper_process.start("verl_hpc.agents.helper", variables, "/")
        send(self._helper.connection, {"image": image and str(Path(image).absolute())})
        self._under_way: WeakSet[Program] = WeakSet()

    def begin(self, job: ProgramJob) -> Program:
        """Start a program; as many may be under way as the node can hold.

        Raises:
            SandboxError: the helper is gone.
        """
        try:
            connection = self._helper.connect()
            send(connection, asdict(job))
        except OSError as error:
            raise self._lost(f" ({error})") from error
        program = Program(connection, self)
        self._under_way.add(program)
        return program

    def check(self) -> None:
        """Raises: SandboxError: the helper is gone."""
        if self._helper.process.poll() is not None:
            raise self._lost()

    def _lost(self, why: str = "") -> SandboxError:
        """Return the error of a helper that is gone, and remove what it would have removed."""
        remove_directory(self.directory)
        return SandboxError(f"the helper that starts programs is gone{why}")

    def close(self) -> None:
        """End all programs and the helper, and wait until they have."""
        for program in self._under_way:
            program.end()
        self._helper.connection.close()
        with suppress(subprocess.TimeoutExpired):
            self._helper.process.wait(_ENDS_WITHIN_S)
        self._held.release()


@cache
def start_programs(image: str | None = None) -> Programs:
    """Return this process's programs; its helper is started once, before MPI if possible.

    Args:
        image: path of the image that programs may have.
    """
    return Programs(image)
