"""What readers of every format have: random access to the rows of one file."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

from verl_hpc.errors import DataError


class RowFile(Protocol):
    """Rows of one file as plain dictionaries."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def scan(self) -> Iterator[dict[str, Any] | DataError]:
        """All rows in order, as far as they can be wrong; an error in place of a damaged one."""
        ...

    def whole(self, index: int) -> dict[str, Any]:
        """A row with all its columns, also those that no setting names."""
        ...

    def where(self, index: int) -> str:
        """How a person finds the row: the file, and the line or row in it."""
        ...
