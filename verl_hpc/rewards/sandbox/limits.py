"""Limits of a program, its result, and the answer of what has run it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 2**20

Ending = Literal[
    "exited", "timed_out", "out_of_memory", "too_many_processes", "output_too_large", "killed"
]
"""How a program ended. exited: by itself, with a status; too_many_processes: also by starting a
single one; killed: by a signal that no limit sends."""


@dataclass(frozen=True)
class Limits:
    """Limits of one program, which is one process."""

    timeout_s: float = 10.0
    """Seconds from its start to its end."""
    cpu_s: float = 10.0
    """Seconds of processor time."""
    memory_bytes: int = 1024 * MIB
    """Resident memory."""
    threads: int = 64
    files_bytes: int = 64 * MIB
    """Most bytes of its directory; without namespaces, of one file."""
    output_bytes: int = MIB
    """Most bytes of its output, and as many of its error output."""

    @property
    def address_bytes(self) -> int:
        """Address space. Interpreters and libraries reserve more than they use."""
        return max(4 * self.memory_bytes, 4096 * MIB)


@dataclass(frozen=True)
class Result:
    """Result of a program."""

    ending: Ending
    status: int
    """Exit status where it exited, number of the signal where it was killed, else 0."""
    stdout: str
    """Output that was read, at most `Limits.output_bytes`. Bytes that are not UTF-8 are
    replaced."""
    stderr: str
    wall_s: float
    message: str = ""
    """Limit that the program exceeded."""


@dataclass(frozen=True)
class Answer:
    """Answer of a keeper."""

    result: Result | None = None
    failure: str = ""
    """Why the program could not be run."""
