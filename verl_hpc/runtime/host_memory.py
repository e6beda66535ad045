"""How much host memory there is, and what becomes of what torch frees."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

# Of glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX, _ARENA_MAX = -1, -4, -8
_CHOICES = ((_TRIM_THRESHOLD, -1), (_MMAP_MAX, 0), (_ARENA_MAX, 1))
_OF_THE_USER = ("MALLOC_", "GLIBC_TUNABLES")
_GROWTH = 1.25
"""Factor by which a process may grow before it returns what is free."""


def keep_freed() -> FreedMemory | None:
    """Keep what is freed for what is allocated next.

    By itself glibc returns it, and the kernel clears pages at their first touch: five times as long
    as an operation on them takes. One arena for all threads, since the backward pass has a thread
    of its own.

    Returns:
        What limits how much is kept; None where the user has set glibc's allocator, or there is
        another, and nothing is kept.
    """
    if any(name.startswith(_OF_THE_USER) for name in os.environ):
        return None
    libc = ctypes.CDLL(None)
    set_option = getattr(libc, "mallopt", None)
    if set_option is None or not all(set_option(*choice) == 1 for choice in _CHOICES):
        return None
    return FreedMemory(libc)


class FreedMemory:
    """What this process has freed and kept.

    A tensor a little larger than all before it fits none of the holes that they have left. Steps
    whose tensors grow bit by bit would thus leave many times what they need.
    """

    def __init__(self, libc: ctypes.CDLL) -> None:
        self._libc = libc
        self._most: float | None = None

    def limit(self) -> None:
        """Return all that is free to the kernel if the process has grown by a quarter since the end
        of the first step, or of the step behind the last return. To be called after each step."""
        resident = _resident_bytes()
        if self._most is None:
            self._most = _GROWTH * resident
        elif resident > self._most:
            self._libc.malloc_trim(0)
            self._most = None


def _resident_bytes() -> int:
    """The memory that this process has now."""
    pages = Path("/proc/self/statm").read_text().split()[1]
    return int(pages) * os.sysconf("SC_PAGESIZE")


def most_bytes() -> int:
    """What processes of this job can have together: the machine's memory, or the least limit of
    the control groups that this process is in."""
    return min([machine_bytes(), *_group_limits(Path("/proc/self/cgroup").read_text())])


def machine_bytes() -> int:
    """The memory of this machine."""
    return _meminfo("MemTotal")


def _group_limits(groups: str, root: Path = Path("/sys/fs/cgroup")) -> Iterator[int]:
    """Limits in bytes of control groups, as `/proc/self/cgroup` names them, and of those above."""
    for line in groups.splitlines():
        _, controllers, name = line.split(":", 2)
        top, file = root, "memory.max"
        if controllers:
            if "memory" not in controllers.split(","):
                continue
            top, file = root / "memory", "memory.limit_in_bytes"
        group = top / name.lstrip("/")
        for directory in (group, *group.parents):
            if not directory.is_relative_to(top):
                break
            with suppress(OSError, ValueError):
                yield int((directory / file).read_text())


def available_bytes() -> int:
    """What new processes of this machine can have without its swapping, as the kernel estimates."""
    return _meminfo("MemAvailable")


def _meminfo(name: str) -> int:
    """Bytes, as the kernel has them of this machine."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{name}:"))
