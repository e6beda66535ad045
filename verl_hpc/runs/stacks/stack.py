"""Read stacks that ranks write by faulthandler, and group them by where ranks are."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

SIGNAL = signal.SIGURG
"""Signal that makes a rank write its stacks. Processes without a handler ignore it: a rank that has
not installed one keeps running, as does a stranger with the process id of a dead rank. USR2, TERM
and ALRM have other meanings here, NCCL may catch USR1, and anything else would kill."""

DIRECTORY = "stacks"
STOPPED = "the process is stopped (state T)"

_FRAME = re.compile(r'^  File "(.*)", line (\d+|\?\?\?) in (.*)$')
_WAITS = (("verl_hpc/runtime/channel.py", "wait"), ("torch/distributed/distributed_c10d.py", ""))
"""Files, and functions if not all of them, in which a rank waits for others."""


@dataclass(frozen=True)
class Frame:
    """One call of a stack."""

    function: str
    file: str
    line: int

    @property
    def waits(self) -> bool:
        """Whether a rank in this call waits for other ranks."""
        return any(self.file.endswith(f) and n in ("", self.function) for f, n in _WAITS)


@dataclass(frozen=True)
class Thread:
    """Calls of one thread, the innermost first."""

    name: str
    frames: tuple[Frame, ...]


@dataclass(frozen=True)
class Stack:
    """Stacks of one rank's threads."""

    rank: int
    host: str
    pid: int
    threads: tuple[Thread, ...] = ()
    """Threads, the main one first; empty if no stack could be taken."""
    problem: str = ""
    """Why there is no stack, or what the process is in."""

    @property
    def main(self) -> tuple[Frame, ...]:
        return self.threads[0].frames if self.threads else ()

    @property
    def is_live(self) -> bool:
        """Whether the rank runs and keeps publishing its position."""
        return bool(self.threads) and STOPPED not in self.problem

    @property
    def waits(self) -> bool:
        """Whether its main thread visibly waits for other ranks."""
        return any(frame.waits for frame in self.main)


@dataclass(frozen=True)
class NodeStacks:
    """Stacks of the ranks of one node, as it writes them for others."""

    stacks: tuple[Stack, ...]


def stack_file(run_directory: Path, rank: int) -> Path:
    """Return the file to which a rank writes its stacks at the signal."""
    return run_directory / DIRECTORY / f"rank_{rank:05d}.txt"


def group(stacks: Iterable[Stack], late: Iterable[int] = ()) -> list[list[Stack]]:
    """Group ranks whose main threads are in the same calls, the odd ones out first.

    First come groups with a late rank, then those that do not visibly wait for others, then small
    ones; ranks without a stack come last.

    Args:
        stacks: one per rank.
        late: ranks that the watchdog calls late.
    """
    behind = set(late)
    by_place: dict[tuple[Any, ...], list[Stack]] = {}
    for stack in sorted(stacks, key=lambda s: s.rank):
        by_place.setdefault(_place(stack), []).append(stack)

    def oddity(ranks: list[Stack]) -> tuple[bool, bool, bool, int, int]:
        first = ranks[0]
        has_late = any(stack.rank in behind for stack in ranks)
        return not first.threads, not has_late, first.waits, len(ranks), first.rank

    return sorted(by_place.values(), key=oddity)


def _place(stack: Stack) -> tuple[Any, ...]:
    """Return a key that ranks in the same place share. It omits the line of a waiting call, which
    loops."""
    if not stack.threads:
        return (stack.problem,)
    return tuple((f.file, f.function, 0 if f.waits else f.line) for f in stack.main)


def from_faulthandler(text: str) -> tuple[Thread, ...]:
    """Parse the threads of one dump of the faulthandler module, which starts with the newest."""
    threads: list[tuple[str, list[Frame]]] = []
    for line in text.splitlines():
        if line.startswith(("Thread 0x", "Current thread 0x")):
            threads.append((line.split("0x", 1)[1].split()[0], []))
        elif threads and (match := _FRAME.match(line)):
            file, number, function = match.groups()
            frame = Frame(function, file, int(number) if number.isdecimal() else 0)
            threads[-1][1].append(frame)
    named = [Thread(f"thread 0x{name}", tuple(frames)) for name, frames in reversed(threads)]
    return (Thread("MainThread", named[0].frames), *named[1:]) if named else ()
