"""Measure and end a process and all its descendants, from /proc."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.runs.process import stat_fields

_TICKS_S = os.sysconf("SC_CLK_TCK")
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_GONE = (FileNotFoundError, ProcessLookupError, PermissionError)
_MOST_ROUNDS = 1000
_AT_A_TIME = 64


@dataclass(frozen=True)
class Usage:
    """Resources that some processes use together."""

    num_tasks: int
    """Processes and threads."""
    cpu_s: float
    """Processor time of them and of their ended children, in seconds."""
    memory_bytes: int
    """Resident memory."""


def below(root: int, most: int) -> list[int]:
    """Return the living descendants of `root`, nearest first.

    The search ends after more than `most`, as they may start others faster than it advances.
    """
    processes = [root]
    for parent in processes:
        processes += children(parent)
        if len(processes) > most + 1:
            break
    return processes[1:]


def usage(processes: list[int]) -> Usage:
    """Return what processes use now; those that are gone use nothing."""
    num_tasks, ticks, pages = 0, 0, 0
    for process in processes:
        with suppress(*_GONE):
            fields = stat_fields(process)
            ticks += sum(map(int, fields[11:15]))
            num_tasks += int(fields[17])
            pages += int(fields[21])
    return Usage(num_tasks, ticks / _TICKS_S, pages * _PAGE_BYTES)


def end_all(root: int) -> bool:
    """End every process below `root`, which adopts their orphans, and wait for them.

    Returns:
        Whether all are gone.
    """
    for _ in range(_MOST_ROUNDS):
        living = below(root, _AT_A_TIME)
        if not living:
            return True
        for process in living:
            with suppress(*_GONE):
                os.kill(process, signal.SIGKILL)
        _reap()
    return False


def _reap() -> None:
    """Wait for all children that have ended, and a moment for one that is about to."""
    with suppress(ChildProcessError):
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOWAIT)
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


def children(process: int) -> list[int]:
    """Return the living children of a process."""
    try:
        tasks = os.listdir(f"/proc/{process}/task")  # noqa: PTH208
    except _GONE:
        return []
    living: list[int] = []
    for task in tasks:
        try:
            text = Path(f"/proc/{process}/task/{task}/children").read_text()
        except _GONE:
            if Path("/proc/self/task", str(os.getpid()), "children").exists():
                continue
            return [child for child, parent in _parents() if parent == process]
        living += map(int, text.split())
    return living


def _parents() -> Iterator[tuple[int, int]]:
    """Yield every process of the machine with its parent, for kernels that list no children."""
    for name in filter(str.isdigit, os.listdir("/proc")):  # noqa: PTH208
        with suppress(*_GONE):
            yield int(name), int(stat_fields(int(name))[1])
