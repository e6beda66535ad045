"""Find and end processes of a lab, by their variables and namespaces, never by their names."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from verl_hpc.runs.process import stat_fields

_PROC = Path("/proc")


def is_alive(process: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return stat_fields(process)[0] not in "ZX"
    except OSError:
        return False


def has_variable(process: int, name: str, value: str) -> bool:
    """Whether a process was started with an environment variable of this value."""
    try:
        variables = (_PROC / str(process) / "environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{name}={value}".encode() in variables


def read_pid(file: Path) -> int | None:
    """Return the process that a pid file names, if it runs."""
    try:
        process = int(file.read_text())
    except (OSError, ValueError):
        return None
    return process if is_alive(process) else None


def namespace_of(process: int | str = "self") -> str | None:
    """Return the UTS namespace of a process, the same for all processes of a node; None without
    it."""
    try:
        return str((_PROC / str(process) / "ns/uts").readlink())
    except OSError:
        return None


def in_namespace(namespace: str) -> Iterator[int]:
    """Yield the processes in a namespace."""
    for directory in _PROC.iterdir():
        if directory.name.isdigit() and namespace_of(directory.name) == namespace:
            process = int(directory.name)
            if is_alive(process):
                yield process


def send(number: signal.Signals, processes: Iterable[int]) -> None:
    """Signal those processes that still exist."""
    for process in processes:
        try:
            os.kill(process, number)
        except ProcessLookupError:
            continue


def end(processes: Iterable[int], grace_s: float = 5.0) -> None:
    """Send TERM, and KILL to processes that still run after `grace_s`."""
    left = list(processes)
    send(signal.SIGTERM, left)
    if not wait_for(lambda: not any(map(is_alive, left)), grace_s):
        send(signal.SIGKILL, filter(is_alive, left))
        wait_for(lambda: not any(map(is_alive, left)), grace_s)


def wait_for(condition: Callable[[], object], timeout_s: float, every_s: float = 0.05) -> bool:
    """Wait for a condition, and return whether it came true in time."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(every_s)
    return True
