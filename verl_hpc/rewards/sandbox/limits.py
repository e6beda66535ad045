"""What a program may use, and how it ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

MIB = 2**20

Ending = Literal[
    "exited",
    "timed_out",
    "out_of_memory",
    "too_many_processes",
    "output_too_large",
    "killed",
]
"""exited: by itself, with a status; too_many_processes: also by starting one at all; killed: by a
signal that none of the limits sends."""


@dataclass(frozen=True)
class Limits:
    """Of one program, which is one process."""

    timeout_s: float = 10.0
    """From its start to its end."""
    cpu_s: float = 10.0
    """Processor time."""
    memory_bytes: int = 1024 * MIB
    """Resident memory."""
    threads: int = 64
    files_bytes: int = 64 * MIB
    """Of its directory; without namespaces, of one file."""
    output_bytes: int = MIB
    """Of its output, and as many of its error output."""

    @property
    def address_bytes(self) -> int:
        """Address space. Interpreters and libraries reserve more than they use."""
        return max(4 * self.memory_bytes, 4096 * MIB)


@dataclass(frozen=True)
class Result:
    """What became of a program."""

    ending: Ending
    status: int
    """Exit status where it exited, number of the signal where it was killed, else 0."""
    stdout: str
    """As far as it was read: at most `Limits.output_bytes`. Bytes that are no UTF-8 are replaced.
    """
    stderr: str
    wall_s: float
    message: str = ""
    """Which limit it met."""
