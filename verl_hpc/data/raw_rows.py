"""Rows of a file as it was published, with all of its fields."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.data.jsonl import JsonlRows
from verl_hpc.errors import DataError

if TYPE_CHECKING:
    from verl_hpc.data.row_file import RowFile

ENDINGS = (".jsonl", ".parquet", ".csv")
_LONGEST_FIELD = 2**24
"""Most characters of a CSV field; Python's own limit is 131,072."""


def open_raw(path: Path) -> RowFile:
    """Open one file by its ending.

    Raises:
        DataError: another ending, or a file that cannot be read.
    """
    try:
        if path.suffix == ".jsonl":
            return JsonlRows(path)
        if path.suffix == ".csv":
            return CsvRows(path)
    except (OSError, UnicodeError, csv.Error) as error:
        raise DataError(f"{path}: cannot be read ({error})") from None
    if path.suffix == ".parquet":
        return _parquet_rows(path)
    raise DataError(f"{path}: the ending says the format; it must be one of {', '.join(ENDINGS)}")


def _parquet_rows(path: Path) -> RowFile:
    from pyarrow import parquet

    from verl_hpc.data.parquet import UNREADABLE, ParquetRows

    try:
        names = parquet.read_schema(path).names
    except UNREADABLE as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from None
    return ParquetRows(path, (), names)


class CsvRows:
    """A small table with a header, in memory."""

    def __init__(self, path: Path) -> None:
        self._path = path
        csv.field_size_limit(_LONGEST_FIELD)
        with path.open(newline="", encoding="utf-8-sig") as file:
            self._rows: list[dict[str, Any]] = list(csv.DictReader(file))

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._rows[index]

    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """Yield all rows in order."""
        yield from self._rows

    def whole(self, index: int) -> dict[str, Any]:
        """Return the row with all its columns."""
        return self[index]

    def where(self, index: int) -> str:
        return f"{self._path} row {index}"
