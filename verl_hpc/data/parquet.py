"""Rows of a Parquet file, decoded a row group at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from verl_hpc.data.row_files import RemoteFile, RowFile
from verl_hpc.errors import DataError

CACHED_ROW_GROUPS = 4
"""Most decoded row groups that the process keeps, over all files."""

SCANNED_ROWS = 4096
"""Rows that a scan holds at a time."""

UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""Errors of pyarrow for a damaged file."""

UNCONVERTIBLE = (*UNREADABLE, OverflowError, KeyError)
"""Errors for a value that Python cannot hold, such as a date after the year 9999 or one in an
unknown time zone."""


class ParquetRows(RowFile):
    """Random access by the file's footer; only used columns are read, except by `whole`."""

    def __init__(
        self, path: Path | RemoteFile, needed: Sequence[str], optional: Iterable[str] | None
    ) -> None:
        self._path = path
        try:
            self._footer = parquet.read_metadata(self._source())
        except UNREADABLE as error:
            raise DataError(f"{path}: not a readable Parquet file ({error})") from None
        schema = self._footer.schema.to_arrow_schema()
        present = self.names = schema.names
        for column in map(top_level, needed):
            if column not in present:
                raise DataError(f"{path}: no column {column!r}; columns are {', '.join(present)}")
        used = (*map(top_level, needed), *(present if optional is None else optional))
        self._columns = [column for column in present if column in used]
        self._scanned = self._columns_to_scan(needed, schema)
        groups = map(self._footer.row_group, range(self._footer.num_row_groups))
        self._ends = list(accumulate(group.num_rows for group in groups))

    def _source(self) -> Any:
        """Return the path or open file for pyarrow."""
        return self._path if isinstance(self._path, Path) else self._path.open()

    def __len__(self) -> int:
        return int(self._footer.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self._row(index, tuple(self._columns))

    def whole(self, index: int) -> dict[str, Any]:
        """Return a row with all its columns, including those that no setting names.

        Raises:
            DataError: one of them is damaged, or has a value that Python cannot hold.
        """
        return self._row(index, None)

    def _row(self, index: int, columns: tuple[str, ...] | None) -> dict[str, Any]:
        group = bisect_right(self._ends, index)
        first = self._ends[group - 1] if group else 0
        (row,) = self._rows(_row_group(self, group, columns).slice(index - first, 1), index)
        if isinstance(row, DataError):
            raise row
        return row

    def where(self, index: int) -> str:
        return f"{self._path} row {index}"

    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """Yield the columns to check of all rows in order; a DataError in place of a row that
        cannot be decoded.

        Mappings whose type is in the file's schema are left out.
        """
        first = 0
        for group, end in enumerate(self._ends):
            try:
                with parquet.ParquetFile(self._source(), metadata=self._footer) as file:
                    for batch in file.iter_batches(SCANNED_ROWS, [group], self._scanned):
                        yield from self._rows(batch, first)
                        first += batch.num_rows
            except UNREADABLE as error:
                damage = self._undecodable(group, error)
                while first < end:
                    yield damage
                    first += 1

    def read_row_group(self, group: int, columns: Sequence[str] | None) -> pa.Table:
        """Decode one row group.

        Args:
            group: its number.
            columns: names of the columns to decode; None decodes all.

        Raises:
            DataError: it is damaged.
        """
        try:
            with parquet.ParquetFile(self._source(), metadata=self._footer) as file:
                return file.read_row_group(group, columns=columns)
        except UNREADABLE as error:
            raise self._undecodable(group, error) from None

    def _rows(self, batch: pa.RecordBatch | pa.Table, first: int) -> list[Any]:
        """Return rows as dictionaries, and a DataError in place of one that Python cannot hold."""
        try:
            return batch.to_pylist()
        except UNCONVERTIBLE as error:
            if batch.num_rows == 1:
                why = " ".join(str(error).split())
                return [
                    DataError(
                        f"{self.where(first)}: a value cannot be read ({why}); mend or remove it"
                    )
                ]
        parts = (self._rows(batch.slice(i, 1), first + i) for i in range(batch.num_rows))
        return [row for part in parts for row in part]

    def _undecodable(self, group: int, error: Exception) -> DataError:
        first = self._ends[group - 1] if group else 0
        return DataError(
            f"{self._path} rows {first} to {self._ends[group] - 1}: cannot be decoded "
            f"({' '.join(str(error).split())}); the file is damaged, make it again"
        )

    def _columns_to_scan(self, needed: Sequence[str], schema: pa.Schema) -> list[str]:
        leaves = {self._footer.schema.column(i).path for i in range(self._footer.num_columns)}
        keys = [key if key in leaves else top_level(key) for key in needed]
        checked = {top_level(key) for key in keys}
        return keys + [
            column
            for column in self._columns
            if column not in checked and not pa.types.is_struct(schema.field(column).type)
        ]


def top_level(key: str) -> str:
    """Return the column of a key: `a` for `a.b`."""
    return key.partition(".")[0]


@lru_cache(maxsize=CACHED_ROW_GROUPS)
def _row_group(rows: ParquetRows, group: int, columns: tuple[str, ...] | None) -> pa.Table:
    return rows.read_row_group(group, columns)
