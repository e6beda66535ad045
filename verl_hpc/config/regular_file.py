"""Read and replace files of a run directory, to which others may write as well."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TextIO


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


def is_regular(path: Path) -> bool:
    """Whether a path is a regular file, and no link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def replace_file(path: Path, lines: Iterable[str], *, durable: bool = False) -> TextIO:
    """Put a new regular file in the place of whatever has this name, and leave it open for more.

    A reader sees the old file or the new one, never half of it, and of several writers the last one
    wins. An existing file is not opened: a pipe would block the writer, and a link could lead
    anywhere.

    Args:
        path: file in a directory that exists.
        lines: its content, each with its line break.
        durable: whether the content must be on the disk before it takes the place of the old one.

    Raises:
        OSError: the file cannot be written; the old one is then unchanged.
    """
    fresh = path.with_name(f".{path.name}.{secrets.token_hex(8)}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    file = os.fdopen(os.open(fresh, flags, 0o666), "w", encoding="utf-8")
    try:
        file.writelines(lines)
        file.flush()
        if durable:
            os.fsync(file.fileno())
        fresh.replace(path)
    except BaseException:
        fresh.unlink(missing_ok=True)
        with suppress(OSError):  # a full disk gives its error a second time
            file.close()
        raise
    return file


def replace_text(path: Path, text: str) -> None:
    """Put a new regular file with this text in the place of whatever has this name; see
    `replace_file`."""
    replace_file(path, [text]).close()


def make_directory(path: Path) -> None:
    """Make a directory for a run's own files, unless it exists.

    Raises:
        OSError: it cannot be made, or is a link, which could lead anywhere.
    """
    path.mkdir(exist_ok=True)
    if path.is_symlink():
        raise NotADirectoryError(f"{path} is a link; a run writes into a directory here")
