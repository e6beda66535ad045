"""Streams of prompts: files read ahead, or what a user's class gives, with a position."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from verl_hpc.api.process import Namespace, temporary_directory
from verl_hpc.config.arguments import checked
from verl_hpc.config.data import FilesConfig
from verl_hpc.config.explain import shown
from verl_hpc.data.files import FilesSource
from verl_hpc.data.formats import FORMATS, open_format
from verl_hpc.data.order import Order, Position
from verl_hpc.data.problem import Problem, Source
from verl_hpc.data.row_files import RowFile
from verl_hpc.data.rows import OPTIONAL_COLUMNS, RowReader
from verl_hpc.data.sources import read_problems
from verl_hpc.errors import DataError
from verl_hpc.section import NonNegative, Positive
from verl_hpc.sources.files import ENDINGS, is_url, list_files


def _check_place(value: Any) -> Any:
    is_position = isinstance(value, Position)
    if not is_position or not all(type(n) is int and n >= 0 for n in vars(value).values()):
        raise ValueError(
            "expected a position, such as Position(epoch=0, offset=8), which .position gives"
        )
    return value


Place = Annotated[Any, AfterValidator(_check_place)]
"""A `Position` of whole numbers, for `checked`."""


class DataProvider:
    """Rows of Parquet or JSONL files, read ahead by threads.

    An object is a source of prompts (`read`), and iterates over the batches of what is left of an
    epoch. `position` is behind the rows that were handed out, whatever has been read ahead.

    Args:
        data_path: files, directories or globs: paths, or URLs that fsspec opens (s3://, gs://,
            http://, memory://). Parquet is streamed by row groups; remote JSONL is copied at the
            start.
        file_format: parquet or jsonl, whatever the ending of a file; None asks the endings.
        prefetch_factor: reads that each worker is ahead.
        num_workers: threads; 0 reads when asked.
        batch_size: rows of a batch of the iteration.
        prompt_key: column of the prompt.
        answer_key: column of the text to imitate, if it is read.
        shuffle: a new order each epoch, by the seed.
        seed: seed of the order.
        storage_options: settings of fsspec's file system, such as {"endpoint_url": ...} of s3.
        namespace: prefix of the directory of copies, which goes with the object.

    Raises:
        DataError: a file that cannot be read, or without rows.
    """

    @checked
    def __init__(
        self,
        data_path: str | Path | Annotated[Sequence[str | Path], Field(min_length=1)],
        file_format: str | None = "parquet",
        prefetch_factor: Positive = 2,
        num_workers: NonNegative = 1,
        *,
        batch_size: Positive = 8,
        prompt_key: str = "prompt",
        answer_key: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        namespace: Namespace = None,
    ) -> None:
        asked = list(map(str, [data_path] if isinstance(data_path, str | Path) else data_path))
        if storage_options and not any(map(is_url, asked)):
            raise DataError(
                f"DataProvider: storage_options are of URLs, and data_path = {asked[0]} is a path; "
                "leave them out"
            )
        if file_format not in (None, *FORMATS):
            raise DataError(f"file_format = {file_format!r}; choose {' or '.join(FORMATS)}")
        self._scratch = temporary_directory(namespace)
        needed = [key for key in (prompt_key, answer_key) if key]
        options = dict(storage_options or {})
        endings = (f".{file_format}",) if file_format else ENDINGS
        paths = [file for path in asked for file in list_files(path, options, endings)]
        self._files: list[RowFile] = []
        for number, path in enumerate(paths):
            kind = file_format or Path(path).suffix[1:]
            scratch = Path(self._scratch.name) / str(number)
            optional = (*OPTIONAL_COLUMNS, "task")
            self._files.append(open_format(path, kind, needed, optional, scratch, options))
        config = FilesConfig(paths=paths, prompt_key=prompt_key, answer_key=answer_key)
        self.source: Source = FilesSource(config, files=self._files)
        self.batch_size = batch_size
        self._order = Order(len(self.source), seed, shuffle)
        self._workers = ThreadPoolExecutor(num_workers) if num_workers else None
        self._depth = num_workers * prefetch_factor
        self._ahead: deque[tuple[int, Position, Future[list[Problem]]]] = deque()
        self._position = Position()
        self._is_closed = False

    def __len__(self) -> int:
        """Rows of an epoch."""
        return len(self.source)

    @property
    def position(self) -> Position:
        """Position of the next row."""
        return self._position

    @checked
    def seek(self, position: Place) -> None:
        """Go on from a position; what was read ahead is dropped.

        Raises:
            DataError: it is behind the last row.
        """
        self._order.take(position, 0)
        self._ahead.clear()
        self._position = position

    def state_dict(self) -> dict[str, int]:
        """The position, as plain numbers."""
        return dict(vars(self._position))

    @checked
    def load_state_dict(self, state: Mapping[str, NonNegative]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            DataError: it is something else.
        """
        if state.keys() != vars(self._position).keys():
            raise DataError(
                f"DataProvider.load_state_dict: {dict(state)}; expected what state_dict() gave, "
                "such as {'epoch': 0, 'offset': 8}"
            )
        self.seek(Position(**{name: int(value) for name, value in state.items()}))

    @checked
    def read(self, count: Positive) -> list[Problem]:
        """Return the next rows; a new epoch begins behind the last one.

        Raises:
            DataError: a malformed row, or the provider is closed.
        """
        if self._is_closed:
            raise DataError("DataProvider.read: it is closed; make another")
        if self._workers is None:
            rows, behind = self._order.take(self._position, count)
            problems = read_problems(self.source, rows)
            self._position = behind
        else:
            if self._ahead and self._ahead[0][0] != count:
                self._ahead.clear()
            self._fill(count)
            _, behind, future = self._ahead.popleft()
            try:
                problems = future.result()
            except DataError:
                # What was read ahead is behind these rows, which the next call asks for again.
                self._ahead.clear()
                raise
            self._position = behind
            self._fill(count)
        return problems

    def _fill(self, count: int) -> None:
        """Ask for as many reads ahead as there may be."""
        assert self._workers is not None
        behind = self._ahead[-1][1] if self._ahead else self._position
        while len(self._ahead) < max(self._depth, 1):
            rows, behind = self._order.take(behind, count)
            self._ahead.append(
                (count, behind, self._workers.submit(read_problems, self.source, rows))
            )

    def __iter__(self) -> Iterator[list[Problem]]:
        """Batches of what is left of the epoch, the last one maybe smaller."""
        epoch = self._position.epoch
        while self._position.epoch == epoch:
            yield self.read(min(self.batch_size, len(self) - self._position.offset))

    def close(self) -> None:
        """End the threads, and remove copies."""
        self._is_closed = True
        if self._workers is not None:
            self._workers.shutdown(cancel_futures=True)
        self._scratch.cleanup()


_READER = RowReader(FilesConfig(paths=["of-this-process"]))


class PromptSource:
    """Prompts for `PPOTrainer(data_provider=...)`; a subclass gives `rows`.

    Rows are mappings with verl's columns, such as {"prompt": ..., "answer": ...} (docs/data.md).
    A trainer that is resumed asks for `rows` anew and leaves out those that it has had.
    """

    count = 0
    """Rows that were read."""
    _rows: Iterator[Any] | None = None

    @property
    def position(self) -> Position:
        """Position of the next row."""
        return Position(0, self.count)

    @checked
    def seek(self, position: Place) -> None:
        """Go on behind so many rows."""
        self.count, self._rows = position.offset, None

    def rows(self) -> Iterable[Mapping[str, Any]]:
        """Give the rows, one after the other, from the first one each time it is called."""
        raise NotImplementedError(f"{type(self).__name__} has no rows()")

    def _begin(self) -> Iterator[Any]:
        rows = self.rows()
        if not isinstance(rows, Iterable):
            raise DataError(
                f"{type(self).__name__}: rows() gave {shown(rows)}; expected an iterator of rows"
            )
        return islice(rows, self.count, None)

    @checked
    def read(self, count: Positive) -> list[Problem]:
        """Return the next problems; a call that fails leaves the position where it was.

        Raises:
            DataError: there are fewer left, or a row is malformed.
        """
        name, problems = type(self).__name__, []
        rows, self._rows = self._rows or self._begin(), None
        for index, row in enumerate(islice(rows, count), self.count):
            where = f"{name} row {index}"
            if not isinstance(row, Mapping):
                raise DataError(f"{where}: {shown(row)}; expected a mapping with verl's columns")
            try:
                problems.append(_READER.problem(row, index, where))
            except DataError as error:
                raise DataError(f"{where}: {error}") from None
        if len(problems) < count:
            raise DataError(
                f"{name}: {len(problems)} of {count} rows were left; ask for fewer, or give a "
                "source that has more"
            )
        self._rows, self.count = rows, self.count + count
        return problems
