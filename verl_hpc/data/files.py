"""Parquet and JSONL files with verl's columns, read as one data set."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from itertools import accumulate, islice
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from weakref import finalize

from verl_hpc.config.data import FilesConfig, TrainOn
from verl_hpc.data.formats import open_rows
from verl_hpc.data.parquet import ParquetRows
from verl_hpc.data.problem import Problem
from verl_hpc.data.row_files import RowFile
from verl_hpc.data.rows import OPTIONAL_COLUMNS, PROMPT_COLUMNS, Needs, RowReader
from verl_hpc.errors import DataError
from verl_hpc.sources.files import is_url, list_files


class FilesSource:
    """The rows of several files, one after another.

    Args:
        config: the files and their columns.
        needs: answer: every row must have an answer to imitate; pair: a chosen and a rejected one;
            label: an answer and whether it is good.
        files: the rows of each file, if they are open already.
        train_on: which turns of the model are imitated (`conversations.answered`).

    Raises:
        DataError: a file cannot be opened (`formats.open_rows`), or there is no row; where a row
            is read, it cannot be used.
    """

    def __init__(
        self,
        config: FilesConfig,
        needs: Needs = "prompt",
        files: Sequence[RowFile] | None = None,
        train_on: TrainOn = "all",
    ) -> None:
        self._reader = RowReader(config, needs, train_on)
        self._files = files or self._open_all(config)
        self._ends = list(accumulate(map(len, self._files)))
        if not self._ends[-1]:
            raise DataError(f"{', '.join(config.paths)}: no rows; give a data set that has some")
        self._num_rows = min(self._ends[-1], config.limit or self._ends[-1])

    def _open_all(self, config: FilesConfig) -> list[RowFile]:
        paths = [file for path in config.paths for file in list_files(path)]
        scratch = Path()
        if any(map(is_url, paths)):
            scratch = Path(mkdtemp(prefix="verl_hpc_rows_"))
            finalize(self, rmtree, scratch, ignore_errors=True)
        return [_open(path, config, scratch / str(n)) for n, path in enumerate(paths)]

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
            problem = self._reader.problem(values, index, rows.where(row), rows.directory)
        except DataError as error:
            raise DataError(f"{rows.where(row)}: {error}") from None
        return replace(problem, columns=partial(rows.whole, row))

    def scan(self) -> Iterator[Problem | DataError]:
        """Yield what `Source.scan` does."""
        problems = (item for rows in self._files for item in self._scan(rows))
        return islice(problems, self._num_rows)

    def _scan(self, rows: RowFile) -> Iterator[Problem | DataError]:
        for row, values in enumerate(rows.scan()):
            if isinstance(values, DataError):
                yield values
                continue
            try:
                yield self._reader.problem(values, row, rows.where(row), rows.directory)
            except DataError as error:
                yield DataError(f"{rows.where(row)}: {error}")


def _open(path: str, config: FilesConfig, scratch: Path) -> RowFile:
    """Open one file.

    Args:
        scratch: directory for a copy of a remote file, made where it is needed.

    Raises:
        DataError: for the reasons of `open_rows`, or no column that may hold a prompt.
    """
    named = config.model_dump(include={"prompt_key", "answer_key"}, exclude_defaults=True)
    rows = open_rows(path, list(named.values()), OPTIONAL_COLUMNS, scratch=scratch)
    if not is_url(path):
        rows.directory = Path(path).absolute().parent
    if isinstance(rows, ParquetRows) and not named and not set(PROMPT_COLUMNS) & set(rows.names):
        raise DataError(
            f"{path}: no column 'prompt'; columns are {', '.join(rows.names)}; name the right one "
            "in prompt_key of the data set"
        )
    return rows
