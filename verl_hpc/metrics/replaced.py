"""Files of a run directory that are replaced whole, so that a reader never sees half of one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TextIO


def replace_file(path: Path, text: str) -> TextIO:
    """Put a new regular file in the place of whatever has this name, and leave it open for more.

    Nothing that stands there is opened: a pipe would block the writer, and a link
    could lead anywhere.

    Args:
        path: in a directory that exists and is no link.
        text: ASCII.

    Raises:
        OSError: it cannot be written; then the old one is as it was.
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
    """A new regular file of ASCII in the place of whatever has this name, as `replace_file`.

    Raises:
        OSError: it cannot be made.
    """
    if path.parent.is_symlink():
        raise NotADirectoryError(f"{path.parent} is a link; a run writes into a directory here")
    path.unlink(missing_ok=True)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.fdopen(os.open(path, flags, 0o666), "w", encoding="ascii")


def _close(file: TextIO) -> None:
    """Without the error that a full disk gives a second time."""
    try:
        file.close()
    except OSError:
        return
