"""Run one program from its start to its end."""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from verl_hpc.rewards.sandbox.containment import (
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
from verl_hpc.runtime import processes
from verl_hpc.runtime.children import adopt_orphans

_LOOK_EVERY_S = 0.02
_PIECE = 65536
_MOST_PROCESSES = 8
"""Far more processes than there are: one of the program, and those of bubblewrap."""
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


def run(job: Job, patron: socket.socket) -> Result:
    """Run a program; this process has no other children.

    Args:
        job: the program.
        patron: socket of the process that asked; the program ends when it closes.

    Raises:
        AbandonedError: the socket has closed.
        OSError: the program cannot be started, or kept apart.
    """
    # Orphans come to this process, whatever their parents do.
    adopt_orphans()
    start = time.monotonic()
    with _started(job) as started:
        watch = _Watch(started.process, job, patron)
        try:
            watch.to_the_end()
            result = _exited(started.process.returncode, job.contained)
        except LimitError as met:
            result = Result(met.ending, 0, "", "", 0.0, met.message)
        finally:
            if not processes.end_all(os.getpid()):
                raise OSError("processes that a program has started cannot be ended")
        if result.ending == "exited" and not started.setup_finished():
            raise OSError(f"bubblewrap: {watch.text('stderr').strip()}")
    try:
        watch.drain()
    except LimitError as met:
        result = replace(result, ending=met.ending, status=0, message=met.message)
    stdout, stderr = watch.text("stdout"), watch.text("stderr")
    wall_s = time.monotonic() - start
    return _named(replace(result, stdout=stdout, stderr=stderr, wall_s=wall_s))


@dataclass(frozen=True)
class _Started:
    process: subprocess.Popen[bytes]
    status_fd: int | None

    def setup_finished(self) -> bool:
        """Whether the program was started at all: bubblewrap reports a program's exit code, and
        nothing if it has failed before that."""
        return self.status_fd is None or b"exit-code" in os.pread(self.status_fd, _PIECE, 0)


@contextmanager
def _started(job: Job) -> Iterator[_Started]:
    with (
        tempfile.TemporaryFile() as stdin,
        tempfile.TemporaryFile() as program,
        tempfile.TemporaryFile() as status,
        tempfile.TemporaryFile() as rules,
        _directory(job) as home,
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
            env=environment(home),
            pass_fds=fds,
            start_new_session=True,
            # This process has one thread.
            preexec_fn=restrict(job.limits, filtered=not job.contained),
        )
        yield _Started(process, status.fileno() if job.contained else None)


@contextmanager
def _directory(job: Job) -> Iterator[str]:
    """Make the program's directory, where it may write; with namespaces it has one in memory."""
    if job.contained:
        yield "/"
        return
    path = tempfile.mkdtemp(prefix="verl_hpc_program_")
    try:
        yield path
    finally:
        # Both work at any depth, also in directories whose permissions the program has removed.
        for words in (["chmod", "-R", "u+rwx", path], ["rm", "-rf", path]):
            subprocess.run(words, env=environment(path), stderr=subprocess.DEVNULL, check=False)


class _Watch:
    """Reads what a program prints, and looks every few milliseconds at what it uses."""

    def __init__(self, process: subprocess.Popen[bytes], job: Job, patron: socket.socket) -> None:
        self._process, self._limits, self._patron = process, job.limits, patron
        self._own = _OF_BUBBLEWRAP if job.contained else 0
        self._start = time.monotonic()
        self._next_look = self._start
        assert process.stdout is not None and process.stderr is not None
        self._pipes = {"stdout": process.stdout.fileno(), "stderr": process.stderr.fileno()}
        self._read = {name: bytearray() for name in self._pipes}
        for pipe in self._pipes.values():
            os.set_blocking(pipe, False)

    def text(self, name: str) -> str:
        """Return what was read so far."""
        return self._read[name].decode(errors="replace")

    def to_the_end(self) -> None:
        """Wait for the program.

        Raises:
            LimitError: the program exceeds one of `Limits`.
            AbandonedError: the patron is gone.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._patron, selectors.EVENT_READ)
            for name, pipe in self._pipes.items():
                selector.register(pipe, selectors.EVENT_READ, name)
            while self._process.poll() is None:
                for key, _ in selector.select(_LOOK_EVERY_S):
                    if key.data is None:
                        raise AbandonedError
                    if not self._take(key.data):
                        selector.unregister(key.fd)
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
        self._next_look = now + _LOOK_EVERY_S
        limits, tree = self._limits, processes.below(os.getpid(), _MOST_PROCESSES)
        used = processes.usage(tree)
        if used.num_tasks > limits.threads + self._own:
            raise LimitError("too_many_processes", f"more than {limits.threads} threads")
        if used.memory_bytes > limits.memory_bytes:
            raise LimitError("out_of_memory", f"more than {limits.memory_bytes:,} bytes")
        if used.cpu_s > limits.cpu_s:
            raise LimitError("timed_out", f"more than {limits.cpu_s:g} s of processor time")
        if now - self._start > limits.timeout_s:
            raise LimitError("timed_out", f"more than {limits.timeout_s:g} s")


def _exited(code: int, contained: bool) -> Result:
    if contained and code > _SIGNALLED:
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
