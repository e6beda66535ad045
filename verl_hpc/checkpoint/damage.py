"""Turn the errors of reading a damaged file into a DamageError."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_hpc.errors import DamageError

_ERRORS_OF_READERS = (
    *(OSError, ValueError, KeyError, IndexError, TypeError, AttributeError),
    *(RuntimeError, OverflowError, MemoryError),
)
"""Exceptions that HDF5, JSON, pydantic and indexing raise for damaged content."""


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn errors of the body into DamageError; the body must only read one file of a step.

    Raises:
        DamageError: the body raised an error; the message names the file.
    """
    try:
        yield
    except _ERRORS_OF_READERS as error:
        text = str(error).splitlines() or [type(error).__name__]
        raise DamageError(f"{path}: damaged ({text[0]}); resume uses the step before it") from error
