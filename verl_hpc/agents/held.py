"""Directories of this node that go with the processes that hold them: sockets, unpacked images.

A process holds a directory by a lock on it, which the kernel takes away when the process and all
that have its descriptor are gone, however they ended. What nobody holds any more is removed by the
last holder, and where that one was killed by the next process that makes such a directory here.
"""

from __future__ import annotations

import fcntl
import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.rewards.sandbox.keeper import remove_directory

PREFIX = "verl_hpc-"


@dataclass(frozen=True)
class Held:
    """A directory that this process holds."""

    path: Path
    descriptor: int

    def release(self) -> None:
        """Hold it no more; remove it, if nobody else does."""
        if _lock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB):
            remove_directory(str(self.path))
        os.close(self.descriptor)


def hold(name: str, within: Path | None = None) -> Held:
    """Make a directory, if it is not there, and hold it.

    Args:
        name: what tells it from others.
        within: its parent; None is TMPDIR.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    path = Path(within or tempfile.gettempdir(), f"{PREFIX}{name}")
    while True:
        path.mkdir(mode=0o700, exist_ok=True)
        # It may be removed until it is locked.
        with suppress(FileNotFoundError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            _lock(descriptor, fcntl.LOCK_SH)
            status = os.fstat(descriptor)
            if status.st_uid != os.getuid():
                raise PermissionError(f"{path} is another user's")
            if status.st_nlink:
                return Held(path, descriptor)
            os.close(descriptor)


def remove_unheld(within: Path) -> None:
    """Remove directories of this user that nobody holds: their holders were killed."""
    for path in within.glob(f"{PREFIX}*"):
        with suppress(OSError):
            descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            if os.fstat(descriptor).st_uid == os.getuid():
                Held(path, descriptor).release()
            else:
                os.close(descriptor)


def _lock(descriptor: int, how: int) -> bool:
    """Return whether a lock was taken; False also where the file system has none."""
    try:
        fcntl.flock(descriptor, how)
    except OSError:
        return False
    return True
