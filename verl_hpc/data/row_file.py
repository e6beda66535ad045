"""Interface of the readers of all formats: random access to the rows of one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from verl_hpc.errors import DataError


class RowFile(Protocol):
    """Rows of one file as plain dictionaries."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """Yield all rows in order with the columns to check; an error for a damaged row."""
        ...

    def whole(self, index: int) -> dict[str, Any]:
        """Return a row with all its columns, including those that no setting names."""
        ...

    def where(self, index: int) -> str:
        """Name the place of a row for people: the file, and the line or row in it."""
        ...
