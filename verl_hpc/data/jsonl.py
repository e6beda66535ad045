"""Rows of a JSONL file, decoded when they are asked for."""

from __future__ import annotations

import json
from array import array
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
        position = 0
        with path.open("rb") as file:
            for line in file:
                if not line.isspace():
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
        try:
            row = json.loads(line)
        except ValueError as error:
            raise DataError(f"{self.where(index)}: not JSON ({error})") from None
        if not isinstance(row, dict):
            raise DataError(
                f"{self.where(index)}: expected an object with a field per column, "
                f"found {type(row).__name__}"
            )
        return row

    def where(self, index: int) -> str:
        with self._path.open("rb") as file:
            lines_before = file.read(self._starts[index]).count(b"\n")
        return f"{self._path} line {lines_before + 1}"
