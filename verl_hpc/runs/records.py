"""Small JSON files of a run, each with one dataclass, replaced whole."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import asdict, is_dataclass
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_origin, get_type_hints

from verl_hpc.config.regular_file import read_regular, replace_text

T = TypeVar("T")
_TYPES: Mapping[Any, Any] = {float: (float, int), int: int, str: str, bool: bool}
_NOT_FINITE = ("nan", "inf", "-inf")
"""Names of floats that JSON lacks."""
_logger = logging.getLogger(__name__)


def write_record(path: Path, record: Any) -> None:
    """Replace a file by a dataclass as JSON.

    Raises:
        OSError: the file cannot be written; the old one is then unchanged.
    """
    replace_text(path, json.dumps(asdict(record)) + "\n")


class RecordFile:
    """A record that is written again and again; a failing write is reported once and ends no run.

    Args:
        path: the file.
        loss: what is lost if it cannot be written, for the report.
    """

    def __init__(self, path: Path, loss: str) -> None:
        self._path, self._loss = path, loss
        self._reported = False

    def write(self, record: Any) -> None:
        try:
            write_record(self._path, record)
        except OSError as error:
            if not self._reported:
                _logger.warning("%s: %s", self._loss, error)
            self._reported = True


def read_record(path: Path, kind: type[T]) -> T | None:
    """Return the record in a regular JSON file; None if it is missing or is no such record."""
    try:
        return parse_record(read_regular(path), kind)
    except (OSError, ValueError):
        return None


def parse_record(text: str | bytes, kind: type[T]) -> T:
    """Return the record in a JSON text; raises as `as_record`."""
    try:
        return as_record(json.loads(text), kind)
    except RecursionError as error:
        raise ValueError(f"no {kind.__name__}: {error}") from None


def as_record(value: Any, kind: type[T]) -> T:
    """Return a value that was made by `asdict` and has travelled as JSON as the dataclass again.

    Raises:
        ValueError: it is no such record.
    """
    try:
        record: T = _parsed(value, kind)
    except (TypeError, KeyError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"no {kind.__name__}: {error}") from None
    return record


def _parsed(value: Any, kind: Any) -> Any:
    """Return a JSON value as an annotation has it; a dataclass may be an object or a list."""
    if kind is float and value in _NOT_FINITE:
        return float(value)
    if kind in _TYPES:
        if not isinstance(value, _TYPES[kind]):
            raise TypeError(f"{value!r} where {kind} was expected")
        return kind(value)
    origin, parts = get_origin(kind), get_args(kind)
    if isinstance(kind, type) and is_dataclass(kind):
        hints = _hints(kind)
        named = value if isinstance(value, dict) else dict(zip(hints, value, strict=True))
        # A later version may have written more.
        return kind(**{n: _parsed(each, hints[n]) for n, each in named.items() if n in hints})
    if origin in (tuple, Sequence) and isinstance(value, list):
        kinds = parts if origin is tuple and parts[-1] is not ... else [parts[0]] * len(value)
        values = [_parsed(each, its) for each, its in zip(value, kinds, strict=True)]
        return tuple(values) if origin is tuple else values
    if origin is Mapping:
        return {name: _parsed(each, parts[1]) for name, each in value.items()}
    if NoneType in parts:
        return None if value is None else _parsed(value, parts[0])
    if origin is Literal and value in parts:
        return value
    raise TypeError(f"{value!r} where {kind} was expected")


@cache
def _hints(kind: type) -> dict[str, Any]:
    """Return a dataclass's types by field, in their order."""
    return get_type_hints(kind)
