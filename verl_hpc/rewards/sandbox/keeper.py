"""Run one program from its start to its end."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from verl_hpc.rewards.sandbox.containment import (
    HOME,
    PROGRAM,
    Ending,
    Interpreter,
    Limits,
    Result,
    bubblewrap,
    command,
    environment,
    restrict,
)
from verl_hpc.rewards.sandbox.seccomp import filter_program
from verl_hpc.runs.records import as_record
from verl_hpc.runtime import processes
from verl_hpc.runtime.children import adopt_orphans
from verl_hpc.runtime.messages import receive, send

T = TypeVar("T")

_LOOK_EVERY_S = 0.02
_ENDS_WITHIN_S = 0.02
_PIECE = 65536
_OF_BUBBLEWRAP = 2
"""Processes of bubblewrap: one outside, and the first one inside."""
_SIGNALLED = 128
"""Exit status of a killed program, as in a shell, is this plus the signal's number."""


@dataclass(frozen=True)
class Job:
    """A program for a keeper to run."""

    program: str
    stdin: str
    limits: Limits
    interpreter: Interpreter
    contained: bool
    """Whether bubblewrap contains it, in addition to limits and the filter of system calls."""


class LimitError(Exception):
    """The program exceeds a limit."""

    def __init__(self, ending: Ending, message: str) -> None:
        super().__init__(message)
        self.ending, self.message = ending, message


class AbandonedError(Exception):
    """The process that asked for the program is gone."""


def answer(kind: type[T], work: Callable[[T, socket.socket], Any], patron: socket.socket) -> None:
    """Receive a job of some kind, do it, and send back its result, or the failure that prevented
    it; nothing if the patron is gone."""
    result, failure = None, ""
    try:
        result = asdict(work(as_record(receive(patron), kind), patron))
    except (AbandonedError, EOFError):
        os._exit(0)
    except Exception as error:
        failure = f"{type(error).__name__}: {error}"
    with suppress(OSError):
        send(patron, {"result": result, "failure": failure})


def run(job: Job, patron: socket.socket) -> Result:
    """Run a program of one process to its end; raises as `keep`."""
    return keep(_started(job), job.limits, patron)


def keep(
    starting: AbstractContextManager[Started],
    limits: Limits,
    patron: socket.socket,
    look_every_s: float = _LOOK_EVERY_S,
) -> Result:
    """Start a program and look after it to its end; this process has no other children.

    Args:
        starting: starts the program as the leader of a session, and clears up after it.
        limits: limits of all its processes together.
        patron: socket of the process that asked; the program ends when it closes.
        look_every_s: seconds between two looks at what the program uses.

    Raises:
        AbandonedError: the socket has closed, or the parent of this process is gone.
        OSError: the program cannot be started, or kept apart.
    """
    # Orphans come to this process, whatever their parents do.
    adopt_orphans()
    start = time.monotonic()
    with starting as started:
        watch = _Watch(started, limits, patron, look_every_s)
        try:
            watch.to_the_end()
            result = _exited(started.process.returncode, started.around > 0)
        except LimitError as met:
            result = Result(met.ending, 0, "", "", 0.0, met.message)
        finally:
            _end_groups()
            if not processes.end_all(os.getpid()):
                raise OSError("processes that a program has started cannot be ended")
        try:
            watch.drain()
        except LimitError as met:
            result = replace(result, ending=met.ending, status=0, message=met.message)
        if result.ending == "exited" and not started.setup_finished():
            raise OSError(f"bubblewrap: {(watch.text('stderr') or watch.text('stdout')).strip()}")
    stdout, stderr = watch.text("stdout"), watch.text("stderr")
    wall_s = time.monotonic() - start
    return _named(replace(result, stdout=stdout, stderr=stderr, wall_s=wall_s))


@dataclass(frozen=True)
class Started:
    """A program that has been started."""

    process: subprocess.Popen[bytes]
    status_fd: int | None
    """File to which bubblewrap writes, if it contains the program."""
    around: int
    """Processes and threads that start the program and end with its status; they count as none of
    its own."""

    def setup_finished(self) -> bool:
        """Whether the program was started at all: bubblewrap reports a program's exit code, and
        nothing if it has failed before that."""
        return self.status_fd is None or b"exit-code" in os.pread(self.status_fd, _PIECE, 0)


def _end_groups() -> None:
    """End what leads a process group, here and in the sandbox, with its group: all at once, so that
    none of it starts another meanwhile."""
    for leader in processes.below(os.getpid(), 1)[:2]:
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, signal.SIGKILL)


@contextmanager
def _started(job: Job) -> Iterator[Started]:
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as program,
        tempfile.TemporaryFile() as status,
        tempfile.TemporaryFile() as rules,
        _directory(job.contained) as home,
    ):
        stdin.write(job.stdin.encode(errors="replace"))
        stdin.seek(0)
        text = job.program.encode(errors="replace")
        fds: list[int] = []
        words = command(job.interpreter, home)
        if job.contained:
            program.write(text)
            program.seek(0)
            rules.write(filter_program())
            rules.seek(0)
            fds = [program.fileno(), status.fileno(), rules.fileno()]
            words = bubblewrap(job.interpreter, job.limits, *fds)
        else:
            Path(home, PROGRAM).write_bytes(text)
        process = subprocess.Popen(
            words,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=home,
            env=environment(HOME if job.contained else home),
            pass_fds=fds,
            start_new_session=True,
            # This process has one thread.
            preexec_fn=restrict(job.limits, filtered=not job.contained),
        )
        if job.contained:
            yield Started(process, status.fileno(), _OF_BUBBLEWRAP)
        else:
            yield Started(process, None, 0)


@contextmanager
def _directory(contained: bool) -> Iterator[str]:
    """Make the program's directory, where it may write; with namespaces it has one in memory."""
    if contained:
        yield "/"
        return
    path = tempfile.mkdtemp(prefix="verl_hpc_program_")
    try:
        yield path
    finally:
        remove_directory(path)


def remove_directory(path: str) -> None:
    """Remove a directory, if it is there, whatever a program has put there."""
    with suppress(OSError):
        Path(path).rmdir()
    if Path(path).exists():
        # Both work at any depth, also in directories whose permissions the program has removed.
        for words in (["chmod", "-R", "u+rwx", path], ["rm", "-rf", path]):
            subprocess.run(words, env=environment(path), stderr=subprocess.DEVNULL, check=False)


class _Watch:
    """Reads what a program prints, and looks every few milliseconds at what it uses."""

    def __init__(
        self, started: Started, limits: Limits, patron: socket.socket, look_every_s: float
    ) -> None:
        self._process, self._around = started.process, started.around
        self._limits, self._patron, self._look_every_s = limits, patron, look_every_s
        self._parent = os.getppid()
        self._start = time.monotonic()
        self._next_look = self._start
        streams = {"stdout": self._process.stdout, "stderr": self._process.stderr}
        self._pipes = {name: stream.fileno() for name, stream in streams.items() if stream}
        self._read = {name: bytearray() for name in self._pipes}
        for pipe in self._pipes.values():
            os.set_blocking(pipe, False)

    def text(self, name: str) -> str:
        """Return what was read so far."""
        return self._read.get(name, b"").decode(errors="replace")

    def to_the_end(self) -> None:
        """Wait for the program.

        Raises:
            LimitError: the program exceeds one of `Limits`.
            AbandonedError: the patron or the parent is gone.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._patron, selectors.EVENT_READ)
            for name, pipe in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, name)
            while self._process.poll() is None:
                for key, _ in selector.select(self._look_every_s):
                    if key.data is None:
                        raise AbandonedError
                    if not self._take(key.data):
                        selector.unregister(key.fd)
                        # What closes its output is about to end, as a rule.
                        with suppress(subprocess.TimeoutExpired):
                            self._process.wait(_ENDS_WITHIN_S)
                self._look()

    def drain(self) -> None:
        """Read what a program that is gone has left in its pipes.

        Raises:
            LimitError: it is too much.
        """
        for name in self._pipes:
            while self._take(name):
                pass

    def _take(self, name: str) -> bool:
        """Read a piece; False at the end."""
        try:
            piece = os.read(self._pipes[name], _PIECE)
        except BlockingIOError:
            return False
        taken, most = self._read[name], self._limits.output_bytes
        taken += piece
        if len(taken) > most:
            del taken[most:]
            raise LimitError("output_too_large", f"more than {most:,} bytes of {name}")
        return bool(piece)

    def _look(self) -> None:
        now = time.monotonic()
        if now < self._next_look:
            return
        self._next_look = now + self._look_every_s
        if os.getppid() != self._parent:
            raise AbandonedError
        limits, most = self._limits, self._limits.tasks + self._around
        used = processes.usage(processes.below(os.getpid(), most))
        if used.num_tasks > most:
            raise LimitError("too_many_processes", f"more than {limits.tasks} processes or threads")
        if used.memory_bytes > limits.memory_bytes:
            raise LimitError("out_of_memory", f"more than {limits.memory_bytes:,} bytes")
        if used.cpu_s > limits.cpu_s:
            raise LimitError("timed_out", f"more than {limits.cpu_s:g} s of processor time")
        if now - self._start > limits.timeout_s:
            raise LimitError("timed_out", f"more than {limits.timeout_s:g} s")


def _exited(code: int, through_another: bool) -> Result:
    if through_another and code > _SIGNALLED:
        code = _SIGNALLED - code
    ending: Ending = "killed" if code < 0 else "exited"
    return Result(ending, abs(code), "", "", 0.0)


def _named(result: Result) -> Result:
    """Return a result with the name of the limit that the kernel has enforced, if any."""
    if result.ending == "killed":
        if result.status == signal.SIGXCPU:
            return replace(result, ending="timed_out", status=0, message="processor time")
        if result.status == signal.SIGSYS:
            words = "a program may start no other"
            return replace(result, ending="too_many_processes", status=0, message=words)
        return replace(result, message=f"by signal {result.status}")
    last = result.stderr.rstrip().rpartition("\n")[2]
    if result.ending == "exited" and result.status and last.startswith("MemoryError"):
        return replace(result, ending="out_of_memory", message="an allocation was refused")
    return result
