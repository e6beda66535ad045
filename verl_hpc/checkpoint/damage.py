"""Turns whatever a damaged file makes its reader raise into a DamageError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_hpc.errors import DamageError

_ERRORS_OF_READERS = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(RuntimeError, OverflowError, MemoryError),
)
"""What HDF5, JSON, pydantic and indexing say of content that is not what was written."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Around the reading of a step's file, and of nothing else.

    Raises:
        DamageError: names the file, whatever its content made the body raise.
    """
    try:
        yield
    except _ERRORS_OF_READERS as error:
        text = str(error).splitlines() or [type(error).__name__]
        raise DamageError(f"{path}: damaged ({text[0]}); resume uses the step before it") from error
