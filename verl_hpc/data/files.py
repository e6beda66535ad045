"""Parquet and JSONL files with verl's columns, read as one data set."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping
from itertools import accumulate
from pathlib import Path
from typing import Any, Protocol

from verl_hpc.config.data import FilesConfig
from verl_hpc.data.jsonl import JsonlRows
from verl_hpc.data.parquet import ParquetRows
from verl_hpc.data.problem import Problem, Prompt
from verl_hpc.errors import DataError

OPTIONAL_COLUMNS = ("data_source", "reward_model", "extra_info")


class Rows(Protocol):
    """Rows of one file as plain dictionaries."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> dict[str, Any]: ...

    def where(self, index: int) -> str:
        """How a person finds the row: the file, and the line or row in it."""
        ...


class FilesSource:
    """The rows of several files, one after another."""

    def __init__(self, config: FilesConfig) -> None:
        self._config = config
        self._files = [open_rows(Path(path), config) for path in config.paths]
        self._ends = list(accumulate(map(len, self._files)))
        if not self._ends[-1]:
            raise DataError(f"{', '.join(config.paths)}: no rows; give a data set that has some")
        self._num_rows = min(self._ends[-1], config.limit or self._ends[-1])

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: int) -> Problem:
        if not 0 <= index < self._num_rows:
            raise IndexError(index)
        file = bisect_right(self._ends, index)
        rows = self._files[file]
        row = index - (self._ends[file] - len(rows))
        values = rows[row]
        try:
            return _problem(index, values, self._config)
        except DataError as error:
            raise DataError(f"{rows.where(row)}: {error}") from None


def open_rows(path: Path, config: FilesConfig) -> Rows:
    """Open one file by its ending.

    Raises:
        DataError: not there, neither .parquet nor .jsonl, malformed, or without a needed column.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file; check the paths of the data set")
    if path.suffix == ".jsonl":
        return JsonlRows(path)
    if path.suffix == ".parquet":
        needed = [_column(key) for key in (config.prompt_key, config.answer_key) if key]
        return ParquetRows(path, needed, OPTIONAL_COLUMNS)
    raise DataError(f"{path}: the ending says the format; it must be .parquet or .jsonl")


def _problem(index: int, row: Mapping[str, Any], config: FilesConfig) -> Problem:
    return Problem(
        index=index,
        prompt=_prompt(_value(row, config.prompt_key)),
        data_source=row.get("data_source") or "",
        ground_truth=_mapping(row, "reward_model").get("ground_truth"),
        extra=_mapping(row, "extra_info"),
        answer=_answer(row, config.answer_key) if config.answer_key else None,
    )


def _column(key: str) -> str:
    return key.partition(".")[0]


def _value(row: Mapping[str, Any], key: str) -> Any:
    """What `key` names; `a.b` is field b of column a."""
    value: Any = row
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise DataError(f"no column {key!r}; columns are {', '.join(row)}")
        value = value[name]
    return value


def _mapping(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    value = row.get(column)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{column} is {_kind(value)}; expected a mapping")
    return value


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str) and value:
        return value
    if isinstance(value, list) and value and all(map(_is_message, value)):
        return value
    raise DataError(
        f"the prompt is {_kind(value)}; expected text, or a list of {{role, content}} of texts"
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _answer(row: Mapping[str, Any], key: str) -> str:
    value = _value(row, key)
    if not isinstance(value, str):
        raise DataError(f"{key} is {_kind(value)}; expected the text to imitate")
    return value


def _kind(value: Any) -> str:
    """What a value is, in a few words: 'null', 'empty', 'list [1, 2]'."""
    if value is None:
        return "null"
    if value in ("", [], {}):
        return "empty"
    return f"{type(value).__name__} {value!r:.60}"
