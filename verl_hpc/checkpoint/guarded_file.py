"""A file for HDF5 to write to that never fails under it.

Where a write fails (a full disk, a quota), HDF5 cannot close its objects any more and ends the
process with a segmentation fault. This file keeps the first error to itself, drops what comes
after, and tells once HDF5 is done.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self


class GuardedFile(io.RawIOBase):
    """A new binary file, for h5py's file-object driver; use as a context manager around HDF5's.

    Raises (on leaving the context):
        OSError: the first write that failed.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o644)
        self._position = 0
        self._size = 0
        self.error: OSError | None = None

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        self._try(lambda: os.ftruncate(self._descriptor, self._size))
        return self._size

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        data = os.pread(self._descriptor, len(view), self._position)
        view[: len(data)] = data
        view[len(data) :] = bytes(len(view) - len(data))  # what was dropped reads as zeros
        self._position += len(view)
        return len(view)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        start = self._position
        self._try(lambda: _write_all(self._descriptor, view, start))
        self._position += len(view)
        self._size = max(self._size, self._position)
        return len(view)

    def _try(self, work: Callable[[], object]) -> None:
        if self.error is None:
            try:
                work()
            except OSError as error:
                self.error = error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._try(lambda: os.fsync(self._descriptor))
        os.close(self._descriptor)
        if self.error is not None:
            raise self.error from None


def _write_all(descriptor: int, data: memoryview, start: int) -> None:
    done = 0
    while done < len(data):
        done += os.pwrite(descriptor, data[done:], start + done)
