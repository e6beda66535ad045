"""Parquet and JSONL files with verl's columns, read as one data set."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, Literal, Protocol

from verl_hpc.config.data import FilesConfig
from verl_hpc.data.jsonl import JsonlRows
from verl_hpc.data.parquet import ParquetRows
from verl_hpc.data.problem import LABEL_COLUMN, PAIR_COLUMNS, Problem, Prompt
from verl_hpc.errors import DataError

ANSWER_COLUMNS = ("answer", "response")
GROUND_TRUTH_COLUMNS = ("ground_truth", *ANSWER_COLUMNS)
"""Where the ground truth of a row without reward_model is, first match first."""
LABELLED_COLUMNS = (*ANSWER_COLUMNS, "completion")
"""Where the answer is that a label is about, first match first."""
OPTIONAL_COLUMNS = (
    "data_source",
    "reward_model",
    "extra_info",
    *GROUND_TRUTH_COLUMNS,
    *PAIR_COLUMNS,
    "completion",
    LABEL_COLUMN,
)
Needs = Literal["prompt", "answer", "pair", "label"]
"""What every row must have: a prompt, besides it a text to imitate, a pair of answers, or an answer
that is labelled good or bad."""
MOST_CHARACTERS = 4 * 2**20
"""Of a prompt or an answer: those of a million tokens."""
_RENAME = "name the right one in prompt_key or answer_key of the data set"


class Rows(Protocol):
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


class FilesSource:
    """The rows of several files, one after another.

    Args:
        config: the files and their columns.
        needs: answer: every row must have a text to imitate; pair: a chosen and a rejected one;
            label: an answer, and whether it is good.
        files: the rows of each file, where they are open already.

    Raises:
        DataError: a file cannot be opened (`open_rows`), or there is no row; where a row is read,
            it cannot be used.
    """

    def __init__(
        self, config: FilesConfig, needs: Needs = "prompt", files: Sequence[Rows] | None = None
    ) -> None:
        self._config, self._needs = config, needs
        self._files = files or [open_rows(Path(path), config) for path in config.paths]
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
            problem = self._problem(index, rows.where(row), values)
        except DataError as error:
            raise DataError(f"{rows.where(row)}: {error}") from None
        return replace(problem, columns=partial(rows.whole, row))

    def scan(self) -> Iterator[Problem | DataError]:
        """As `Source`."""
        found = (item for rows in self._files for item in self._scan(rows))
        return islice(found, self._num_rows)

    def _scan(self, rows: Rows) -> Iterator[Problem | DataError]:
        for row, values in enumerate(rows.scan()):
            if isinstance(values, DataError):
                yield values
                continue
            try:
                yield self._problem(row, rows.where(row), values)
            except DataError as error:
                yield DataError(f"{rows.where(row)}: {error}")

    def _problem(self, index: int, origin: str, row: Mapping[str, Any]) -> Problem:
        problem = problem_of(row, index, origin, self._config.prompt_key)
        return replace(problem, **self._answers(row))

    def _answers(self, row: Mapping[str, Any]) -> dict[str, Any]:
        if self._needs == "pair":
            return dict(zip(("answer", "rejected"), _pair(row), strict=True))
        if self._needs == "label":
            return {"answer": _labelled_answer(row, self._config.answer_key), "label": _label(row)}
        return {"answer": _answer(row, self._config.answer_key, self._needs == "answer")}


def problem_of(
    row: Mapping[str, Any], index: int, origin: str, prompt_key: str = "prompt"
) -> Problem:
    """A row with verl's columns.

    Args:
        row: by column.
        index: its number.
        origin: what errors call it.
        prompt_key: column of the prompt.

    Raises:
        DataError: it has no prompt, or one that is neither text nor a chat.
    """
    return Problem(
        index=index,
        prompt=_prompt(_value(row, prompt_key)),
        data_source=row.get("data_source") or "",
        ground_truth=_ground_truth(row),
        extra=_mapping(row, "extra_info"),
        origin=origin,
    )


def open_rows(path: Path, config: FilesConfig) -> Rows:
    """Open one file by its ending.

    Raises:
        DataError: not there, neither .parquet nor .jsonl, malformed, or without a needed column.
    """
    try:
        if not path.is_file():
            raise DataError(f"{path}: no such file; check the paths of the data set")
        path.open("rb").close()
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error}); check the data set") from None
    if path.suffix == ".jsonl":
        return JsonlRows(path)
    if path.suffix == ".parquet":
        needed = [key for key in (config.prompt_key, config.answer_key) if key]
        return ParquetRows(path, needed, OPTIONAL_COLUMNS)
    raise DataError(f"{path}: the ending says the format; it must be .parquet or .jsonl")


def _value(row: Mapping[str, Any], key: str, advice: str = _RENAME) -> Any:
    """What `key` names; `a.b` is field b of column a."""
    value: Any = row
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            raise DataError(f"no column {key!r}; columns are {', '.join(row)}; {advice}")
        value = value[name]
    return value


def _mapping(row: Mapping[str, Any], column: str) -> dict[str, Any]:
    value = row.get(column)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise DataError(f"{column} is {_kind(value)}; expected a mapping")
    return value


def _ground_truth(row: Mapping[str, Any]) -> Any:
    if row.get("reward_model") is not None:
        return _mapping(row, "reward_model").get("ground_truth")
    return _first(row, GROUND_TRUTH_COLUMNS)


def _first(row: Mapping[str, Any], columns: Iterable[str]) -> Any:
    return next((row[column] for column in columns if row.get(column) is not None), None)


def _prompt(value: Any) -> Prompt:
    if isinstance(value, str) and value:
        return _checked("the prompt", value)
    if isinstance(value, list) and value and all(map(_is_message, value)):
        for message in value:
            _checked("the prompt", message["role"])
            _checked("the prompt", message["content"])
        return value
    raise DataError(
        f"the prompt is {_kind(value)}; expected text, or a list of {{role, content}} of texts"
    )


def _is_message(value: Any) -> bool:
    return isinstance(value, dict) and all(
        isinstance(value.get(key), str) for key in ("role", "content")
    )


def _answer(row: Mapping[str, Any], key: str | None, needed: bool) -> str | None:
    value = _value(row, key) if key else _first(row, ANSWER_COLUMNS)
    if isinstance(value, str):
        return _checked(key or "the answer", value)
    if key:
        raise DataError(f"{key} is {_kind(value)}; expected the text to imitate")
    if needed:
        raise DataError(
            f"no text in {' or '.join(ANSWER_COLUMNS)}; columns are {', '.join(row)}; name the "
            "column of the text to imitate in answer_key of the data set"
        )
    return None


def _pair(row: Mapping[str, Any]) -> tuple[str, str]:
    advice = f"a pair needs {' and '.join(PAIR_COLUMNS)}"
    chosen, rejected = (_text_or_chat(row, column, advice) for column in PAIR_COLUMNS)
    if chosen == rejected:
        raise DataError(
            f"{' and '.join(PAIR_COLUMNS)} are the same text, {chosen!r:.60}, which prefers "
            "nothing; remove the row"
        )
    return chosen, rejected


def _labelled_answer(row: Mapping[str, Any], key: str | None) -> str:
    column = key or next((c for c in LABELLED_COLUMNS if row.get(c) is not None), None)
    if column is None:
        raise DataError(
            f"no answer in {' or '.join(LABELLED_COLUMNS)}; columns are {', '.join(row)}; name the "
            "column of the answer in answer_key of the data set"
        )
    return _text_or_chat(row, column)


def _label(row: Mapping[str, Any]) -> bool:
    value = _value(row, LABEL_COLUMN, "it says whether the answer is good, true or false")
    if not isinstance(value, bool):
        raise DataError(
            f"{LABEL_COLUMN} is {_kind(value)}; expected true, where the answer is good, or false"
        )
    return value


def _text_or_chat(row: Mapping[str, Any], column: str, advice: str = _RENAME) -> str:
    """A text, or the last message of a chat list."""
    value = _value(row, column, advice)
    if isinstance(value, list) and value and all(map(_is_message, value)):
        value = value[-1]["content"]
    if not isinstance(value, str):
        raise DataError(
            f"{column} is {_kind(value)}; expected an answer's text, or a list of {{role, "
            "content} that ends with it"
        )
    return _checked(column, value)


def _checked(name: str, text: str) -> str:
    if len(text) > MOST_CHARACTERS:
        raise DataError(
            f"{name} has {len(text):,} characters; at most {MOST_CHARACTERS:,} are read: no model "
            "takes more, and a tokenizer needs minutes for them; remove the row"
        )
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(
            f"{name} has half of a surrogate pair, {error.object[error.start]!a}, at character "
            f"{error.start}: no text that can be encoded; remove it"
        ) from None
    return text


def _kind(value: Any) -> str:
    """What a value is, in a few words: 'null', 'empty', 'list [1, 2]'."""
    if value is None:
        return "null"
    if value in ("", [], {}):
        return "empty"
    return f"{type(value).__name__} {value!r:.60}"
