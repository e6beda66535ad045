"""Streams of prompts: files here or behind URLs, read ahead, with a position to go on from."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from verl_hpc.api.namespace import namespaced, temporary_directory
from verl_hpc.config.arguments import checked, plain_number
from verl_hpc.config.data import FilesConfig
from verl_hpc.config.explain import shown
from verl_hpc.data.files import FilesSource
from verl_hpc.data.formats import open_format
from verl_hpc.data.order import Order, Position
from verl_hpc.data.problem import Problem
from verl_hpc.data.rows import OPTIONAL_COLUMNS
from verl_hpc.data.sources import read_problems
from verl_hpc.errors import ConfigError, DataError


class DataProvider:
    """Rows of Parquet or JSONL files, read ahead by threads.

    An object is a source of prompts (`read`), and iterates over the batches of what is left of an
    epoch. `position` is behind the rows that were handed out, whatever has been read ahead.

    Args:
        data_path: a file or several: paths, or URLs that fsspec opens (s3://, gs://, http://,
            memory://). Parquet is streamed by row groups; remote JSONL is copied at the start.
        file_format: parquet or jsonl; the names' endings are not asked.
        prefetch_factor: reads that each worker is ahead.
        num_workers: threads; 0 reads when asked.
        batch_size: rows of a batch of the iteration.
        prompt_key: column of the prompt.
        answer_key: column of the text to imitate, if it is read.
        shuffle: a new order each epoch, by the seed.
        seed: of the order.
        storage_options: of fsspec's file system, such as {"endpoint_url": ...} of s3.
        namespace: prefix of the directory of copies, which goes with the object.

    Raises:
        DataError: a file that cannot be read, or without rows.
    """

    @checked
    def __init__(
        self,
        data_path: str | Path | Sequence[str | Path],
        file_format: str = "parquet",
        prefetch_factor: int = 2,
        num_workers: int = 1,
        *,
        batch_size: int = 8,
        prompt_key: str = "prompt",
        answer_key: str | None = None,
        shuffle: bool = False,
        seed: int = 0,
        storage_options: Mapping[str, Any] | None = None,
        namespace: str | None = None,
    ) -> None:
        for name, value, least in (
            ("prefetch_factor", prefetch_factor, 1),
            ("num_workers", num_workers, 0),
            ("batch_size", batch_size, 1),
        ):
            if value < least:
                raise DataError(f"DataProvider: {name} = {value}; expected at least {least}")
        paths = [data_path] if isinstance(data_path, str | Path) else list(data_path)
        if not paths:
            raise DataError("DataProvider: data_path = []; name at least one file")
        if storage_options and not any("://" in str(path) for path in paths):
            raise DataError(
                f"DataProvider: storage_options are of URLs, and data_path = {paths[0]} is a path; "
                "leave them out"
            )
        self._scratch = temporary_directory(namespaced(namespace))
        needed = [key for key in (prompt_key, answer_key) if key]
        options = dict(storage_options or {})
        files = []
        for number, path in enumerate(paths):
            scratch = Path(self._scratch.name) / str(number)
            scratch.mkdir()
            files.append(
                open_format(str(path), file_format, needed, OPTIONAL_COLUMNS, scratch, options)
            )
        config = FilesConfig(
            paths=[str(path) for path in paths], prompt_key=prompt_key, answer_key=answer_key
        )
        self.source = FilesSource(config, files=files)
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
        """Of the next row."""
        return self._position

    def seek(self, position: Position) -> None:
        """Go on from a position; what was read ahead is dropped.

        Raises:
            DataError: it is none, or behind the last row.
        """
        position = check_position(position, "DataProvider")
        self._order.take(position, 0)
        self._ahead.clear()
        self._position = position

    def state_dict(self) -> dict[str, int]:
        """The position, as plain numbers."""
        return {"epoch": self._position.epoch, "offset": self._position.offset}

    def load_state_dict(self, state: Mapping[str, int]) -> None:
        """Go on from what `state_dict` gave.

        Raises:
            DataError: it is something else.
        """
        self.seek(position_of(state, "DataProvider"))

    def read(self, count: int) -> list[Problem]:
        """The next rows; a new epoch begins behind the last one.

        Raises:
            DataError: a malformed row, less than one row, or the provider is closed.
        """
        count = check_count(count, "DataProvider")
        if self._is_closed:
            raise DataError("DataProvider.read: it is closed; make another")
        if self._workers is None:
            rows, behind = self._order.take(self._position, count)
            found = read_problems(self.source, rows)
            self._position = behind
        else:
            if self._ahead and self._ahead[0][0] != count:
                self._ahead.clear()
            self._fill(count)
            _, behind, future = self._ahead.popleft()
            found = future.result()
            self._position = behind
            self._fill(count)
        return found

    def _fill(self, count: int) -> None:
        """Ask for as much ahead as there may be."""
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


def check_count(count: Any, where: str) -> int:
    """The number of rows to read.

    Raises:
        DataError: it is none.
    """
    count = plain_number(count)
    if type(count) is not int or count < 1:
        raise DataError(f"{where}.read: {shown(count)} rows; expected at least 1")
    return int(count)


def check_position(position: Any, where: str) -> Position:
    """The position to go on from.

    Raises:
        DataError: it is none.
    """
    found = None
    if isinstance(position, Position):
        found = _position(position.epoch, position.offset)
    if found is None:
        raise DataError(
            f"{where}.seek: {shown(position)}; expected a position, such as Position(epoch=0, "
            "offset=8), which .position gives"
        )
    return found


def position_of(state: Any, where: str) -> Position:
    """Raises: DataError: it is not what `state_dict` gives."""
    try:
        found = _position(state["epoch"], state["offset"])
    except (KeyError, TypeError):
        found = None
    if found is None:
        raise DataError(
            f"{where}.load_state_dict: {shown(state)}; expected what state_dict() gave, such as "
            "{'epoch': 0, 'offset': 8}"
        )
    return found


def _position(epoch: Any, offset: Any) -> Position | None:
    """None if they are no whole numbers of at least 0."""
    numbers = plain_number(epoch), plain_number(offset)
    is_one = all(type(number) is int and number >= 0 for number in numbers)
    return Position(*numbers) if is_one else None


def check_provider(provider: Any) -> None:
    """Raises: ConfigError: it is no source of prompts."""
    if provider is not None and not callable(getattr(provider, "read", None)):
        raise ConfigError(
            f"data_provider is {type(provider).__name__}; expected a DataProvider, or another "
            "source with read(count), such as a PromptSource"
        )
