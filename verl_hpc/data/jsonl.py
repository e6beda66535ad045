"""Rows of a JSONL file, decoded when they are asked for."""

from __future__ import annotations

import json
from array import array
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verl_hpc.errors import DataError


class JsonlRows:
    """Random access over an index of line starts: 8 bytes a row, built in one pass.

    Blank lines are no rows.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
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

    def whole(self, index: int) -> dict[str, Any]:
        """Return the row as `__getitem__` does: a line is always decoded whole."""
        return self[index]

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
        return f"{self._path} line {index + 1 + bisect_right(self._blanks, index)}"
