"""Random access to the rows of one file: JSONL, CSV or Parquet, here or behind a URL."""

from __future__ import annotations

import csv
import json
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from io import RawIOBase
from pathlib import Path
from typing import Any

from verl_hpc.errors import DataError
from verl_hpc.sources.files import file_system, retried

_LONGEST_FIELD = 2**24
"""Most characters of a CSV field; Python's own limit is 131,072."""


class RowFile(ABC):
    """Rows of one file as plain dictionaries."""

    directory: Path | None = None
    """Directory of a local file, to which paths in its rows are relative."""

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @abstractmethod
    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """Yield all rows in order with the columns to check; an error for a damaged row."""

    def whole(self, index: int) -> dict[str, Any]:
        """Return a row with all its columns, including those that no setting names."""
        return self[index]

    @abstractmethod
    def where(self, index: int) -> str:
        """Name the place of a row for people: the file, and the line or row in it."""


class RemoteFile:
    """A file that fsspec opens, with the part of `Path`'s interface that readers of rows need.

    Args:
        url: address with its protocol: s3, gs, http, memory, ...
        options: options of the protocol's file system, such as {"endpoint_url": ...}.
    """

    def __init__(self, url: str, options: dict[str, Any] | None = None) -> None:
        self.url, self.options = url, options or {}

    def __str__(self) -> str:
        return self.url

    def open(self, mode: str = "rb") -> Any:
        """Open the file, which is read only where it is asked for.

        Raises:
            DataError: a package for the protocol is missing, or it cannot be read.
        """

        def ask() -> Any:
            store, path = file_system(self.url, self.options)
            return store.open(path, mode)

        return _RetriedFile(self.url, retried(self.url, ask))

    def copied_to(self, directory: Path) -> Path:
        """Copy the whole file to a directory, which is made, and return the path."""
        directory.mkdir(parents=True, exist_ok=True)
        target = directory / "rows"
        with self.open() as source, target.open("wb") as file:
            while chunk := source.read(2**20):
                file.write(chunk)
        return target


class _RetriedFile(RawIOBase):
    """An open file of a store that is asked again where a read fails."""

    def __init__(self, url: str, file: Any) -> None:
        self._url, self._file = url, file

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return int(self._file.tell())

    def seek(self, offset: int, whence: int = 0) -> int:
        return int(self._file.seek(offset, whence))

    def read(self, size: int = -1) -> bytes:
        """Read bytes from the position.

        Raises:
            DataError: the store gives no answer.
        """
        position = self._file.tell()

        def ask() -> bytes:
            self._file.seek(position)
            return bytes(self._file.read(size))

        return retried(self._url, ask)

    def close(self) -> None:
        self._file.close()
        super().close()


class JsonlRows(RowFile):
    """Random access over an index of line starts: 8 bytes a row, built in one pass.

    Blank lines are no rows.

    Args:
        path: the file.
        name: its name for people; None takes the path.
    """

    def __init__(self, path: Path, name: str | None = None) -> None:
        self._path, self._name = path, name or str(path)
        self._starts = array("q")
        self._blanks = array("q")
        """Number of rows before each blank line."""
        position = 0
        with path.open("rb") as file:
            for line in file:
                if line.isspace():
                    self._blanks.append(len(self._starts))
                else:
                    self._starts.append(position)
                position += len(line)

    def __len__(self) -> int:
        return len(self._starts)

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Decode one row.

        Raises:
            DataError: the line is not a JSON object.
        """
        with self._path.open("rb") as file:
            file.seek(self._starts[index])
            line = file.readline()
        return self._decode(index, line)

    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """Yield all rows in order; a DataError in place of a row that cannot be decoded."""
        with self._path.open("rb") as file:
            lines = (line for line in file if not line.isspace())
            for index, line in enumerate(lines):
                try:
                    yield self._decode(index, line)
                except DataError as error:
                    yield error

    def _decode(self, index: int, line: bytes) -> dict[str, Any]:
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise DataError(f"{self.where(index)}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(
                f"{self.where(index)}: expected an object with a field per column, "
                f"found {type(row).__name__}"
            )
        return row

    def where(self, index: int) -> str:
        return f"{self._name} line {index + 1 + bisect_right(self._blanks, index)}"


class CsvRows(RowFile):
    """A small table with a header, in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        csv.field_size_limit(_LONGEST_FIELD)
        try:
            with path.open(newline="", encoding="utf-8-sig") as file:
                self._rows: list[dict[str, Any]] = list(csv.DictReader(file))
        except (UnicodeError, csv.Error) as error:
            raise DataError(f"{path}: cannot be read ({error})") from None

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]

    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """Yield all rows in order."""
        yield from self._rows

    def where(self, index: int) -> str:
        return f"{self._path} row {index}"
