"""Read files of a run directory, to which others may write as well."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

T = TypeVar("T")


def open_regular(path: Path) -> BinaryIO:
    """Open a regular file to read it.

    A pipe of its name would block the reader forever, and a link could lead to any file
    that only the reader may see.

    Raises:
        OSError: there is no file, it cannot be read, or it is a link or not a regular file.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is not a regular file")
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: Path) -> bytes:
    """All of a regular file; raises as `open_regular`."""
    with open_regular(path) as file:
        return file.read()


def read_json(path: Path, parse: Callable[[Any], T]) -> T | None:
    """Return a regular JSON file as `parse` understands it; None if it is missing or unreadable."""
    try:
        return parse(json.loads(read_regular(path)))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False
