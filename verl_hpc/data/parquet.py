"""Rows of a Parquet file, decoded a row group at a time."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from verl_hpc.errors import DataError

CACHED_ROW_GROUPS = 4
"""Decoded row groups that the process keeps, over all files."""


class ParquetRows:
    """Random access by way of the footer; only the columns that are used are read."""

    def __init__(self, path: Path, needed: Sequence[str], optional: Iterable[str]) -> None:
        self._path = path
        try:
            self._footer = parquet.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise DataError(f"{path}: not a readable Parquet file ({error})") from None
        present = self._footer.schema.to_arrow_schema().names
        for column in needed:
            if column not in present:
                raise DataError(f"{path}: no column {column!r}; columns are {', '.join(present)}")
        used = (*needed, *optional)
        self._columns = [column for column in present if column in used]
        groups = map(self._footer.row_group, range(self._footer.num_row_groups))
        self._ends = list(accumulate(group.num_rows for group in groups))

    def __len__(self) -> int:
        return int(self._footer.num_rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        group = bisect_right(self._ends, index)
        first = self._ends[group - 1] if group else 0
        return _row_group(self, group).slice(index - first, 1).to_pylist()[0]

    def where(self, index: int) -> str:
        return f"{self._path} row {index}"

    def read_row_group(self, group: int) -> pa.Table:
        with parquet.ParquetFile(self._path, metadata=self._footer) as file:
            return file.read_row_group(group, columns=self._columns)


@lru_cache(maxsize=CACHED_ROW_GROUPS)
def _row_group(rows: ParquetRows, group: int) -> pa.Table:
    return rows.read_row_group(group)
