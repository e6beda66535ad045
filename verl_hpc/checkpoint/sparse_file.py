"""A sparse file in memory, which stores only written pages."""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Iterator

_PAGE = 4096


class SparseFile(io.RawIOBase):
    """A file for h5py's file-object driver; unwritten bytes read as zeros.

    It is not a system file, even a nameless one, since a limit on file sizes would apply, and HDF5
    may crash a process that cannot write.
    """

    def __init__(self) -> None:
        self._pages: dict[int, bytearray] = defaultdict(lambda: bytearray(_PAGE))
        self._position = 0
        self.size = 0

    def readable(self) -> bool:
        return True

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self.size}[whence]
        self._position = base + offset
        return self._position

    def truncate(self, size: int | None = None) -> int:
        self.size = self._position if size is None else size
        return self.size

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        view = memoryview(buffer).cast("B")
        for at, page, start, stop in self._pieces(len(view)):
            content = self._pages.get(page, bytes(_PAGE))
            view[at : at + stop - start] = content[start:stop]
        self._position += len(view)
        return len(view)

    def write(self, data: memoryview) -> int:  # type: ignore[override]
        view = memoryview(data).cast("B")
        for at, page, start, stop in self._pieces(len(view)):
            self._pages[page][start:stop] = view[at : at + stop - start]
        self._position += len(view)
        self.size = max(self.size, self._position)
        return len(view)

    def _pieces(self, count: int) -> Iterator[tuple[int, int, int, int]]:
        """Split the next `count` bytes by page; yield (offset, page, start and stop in it)."""
        at = 0
        while at < count:
            page, start = divmod(self._position + at, _PAGE)
            stop = min(start + count - at, _PAGE)
            yield at, page, start, stop
            at += stop - start
