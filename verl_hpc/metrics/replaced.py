"""Replace files of a run directory whole, so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO


def replace_file(path: Path, text: str) -> TextIO:
    """Put a new regular file in the place of whatever has this name, and leave it open for more.

    An existing file is not opened: a pipe would block the writer, and a link could lead anywhere.

    Args:
        path: file in a directory that exists and is no link.
        text: its content, ASCII.

    Raises:
        OSError: the file cannot be written; the old one is then unchanged.
    """
    part = path.with_name(f"{path.name}.part")
    file = open_new(part)
    try:
        file.write(text)
        file.flush()
        part.replace(path)
    except BaseException:
        part.unlink(missing_ok=True)
        _close(file)
        raise
    return file


def open_new(path: Path) -> TextIO:
    """Open a new regular ASCII file in the place of whatever has this name.

    Raises:
        OSError: the file cannot be made.
    """
    if path.parent.is_symlink():
        raise NotADirectoryError(f"{path.parent} is a link; a run writes into a directory here")
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "w", encoding="ascii")


def _close(file: TextIO) -> None:
    """Close a file without the error that a full disk gives a second time."""
    try:
        file.close()
    except OSError:
        return
