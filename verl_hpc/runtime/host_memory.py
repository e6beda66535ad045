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


def keep_freed() -> bool:
    """Keep what is freed for what is allocated next.

    By itself glibc returns it, and the kernel clears pages at their first touch: five times as long
    as an operation on them takes. A process then stays as large as it was at its largest. One arena
    for all threads, since the backward pass has a thread of its own.

    Returns:
        Whether it is so: not where the user has set glibc's allocator, or there is another.
    """
    if any(name.startswith(_OF_THE_USER) for name in os.environ):
        return False
    set_option = getattr(ctypes.CDLL(None), "mallopt", None)
    return set_option is not None and all(set_option(*choice) == 1 for choice in _CHOICES)


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
