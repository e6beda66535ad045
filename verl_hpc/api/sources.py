"""Prompts from elsewhere than files. A source is a small class: `read(count)` gives problems."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from math import inf
from typing import Annotated, Any

from verl_hpc.api.data import check_count, check_position
from verl_hpc.config.arguments import checked, having
from verl_hpc.config.explain import shown
from verl_hpc.data.order import Position
from verl_hpc.data.problem import Problem
from verl_hpc.data.rows import problem_of
from verl_hpc.errors import DataError


class PromptSource:
    """What `PPOTrainer(data_provider=...)` takes prompts from; a subclass gives `rows`.

    Rows are mappings with verl's columns, such as {"prompt": ..., "answer": ...} (docs/data.md).
    A trainer that is resumed asks for `rows` anew and leaves out those that it has had.
    """

    count = 0
    """Rows that were read."""
    comes_again = True
    """Whether `rows` begins with the first row each time it is called; what is taken from a queue
    does not come again."""
    _taken: list[Problem]

    @property
    def position(self) -> Position:
        """Of the next row."""
        return Position(0, self.count)

    def seek(self, position: Position) -> None:
        """Go on behind so many rows. What does not come again goes on with what is there now,
        numbered from there.

        Raises:
            DataError: it is no position.
        """
        position = check_position(position, type(self).__name__)
        begins = self.comes_again or not hasattr(self, "_rows")
        further, self.count = position.offset - self.count, position.offset
        if begins:
            self._begin()
        else:
            self._next += further
            self._taken = [self._numbered(row, row.index + further) for row in self._taken]

    def _begin(self) -> None:
        rows: Any = self.rows()
        if not isinstance(rows, Iterable):
            raise DataError(
                f"{type(self).__name__}: rows() gave {shown(rows)}; expected an iterator of rows"
            )
        if self.comes_again:
            rows = islice(rows, self.count, None)
        self._rows, self._next, self._taken = iter(rows), self.count, []

    def _numbered(self, row: Problem, number: int) -> Problem:
        return replace(row, index=number, origin=f"{type(self).__name__} row {number}")

    def rows(self) -> Iterator[Mapping[str, Any]]:
        """The rows, one after the other, as long as there are some."""
        raise NotImplementedError(f"{type(self).__name__} has no rows()")

    def read(self, count: int) -> list[Problem]:
        """The next problems. Rows that have come before an error are kept for the next call; a
        malformed one is left out then.

        Raises:
            DataError: there are fewer left, a row is malformed, or less than one is asked for.
        """
        name = type(self).__name__
        count = check_count(count, name)
        if not hasattr(self, "_rows"):
            self._begin()
        for row in islice(self._rows, max(count - len(self._taken), 0)):
            number, self._next = self._next, self._next + 1
            where = f"{name} row {number}"
            try:
                self._taken.append(problem_of(_mapping(row), number, where))
            except DataError as error:
                raise DataError(f"{where}: {error}") from None
        if len(self._taken) < count:
            raise DataError(
                f"{name}: {len(self._taken)} of {count} rows were left; ask for fewer, or give a "
                "source that has more"
            )
        found, self._taken = self._taken[:count], self._taken[count:]
        self.count = found[-1].index + 1
        return found


def _mapping(row: Any) -> Mapping[str, Any]:
    """Raises: DataError: it is none."""
    if not isinstance(row, Mapping):
        raise DataError(
            f'{shown(row)}; expected a mapping with columns, such as {{"prompt": ..., "answer": '
            "...}"
        )
    return row


class DatabaseSource(PromptSource):
    """Rows of a query, with a position: row n of the query is the same in every run if it has an
    ORDER BY.

    Args:
        connection: of Python's DB-API, such as sqlite3's.
        query: whose columns are verl's.
    """

    @checked
    def __init__(
        self,
        connection: Annotated[Any, having("a connection of Python's DB-API", "cursor")],
        query: str,
    ) -> None:
        self._connection, self._query = connection, query

    def rows(self) -> Iterator[Mapping[str, Any]]:
        try:
            cursor = self._connection.cursor()
            cursor.execute(self._query)
        except Exception as error:  # each driver of the DB-API has classes of its own
            raise DataError(
                f"DatabaseSource: {type(error).__name__}: {error}; its query is {self._query!r}"
            ) from error
        if cursor.description is None:
            raise DataError(f"DatabaseSource: the query {self._query!r} gives no rows")
        names = [column[0] for column in cursor.description]
        return (dict(zip(names, values, strict=True)) for values in cursor)


class QueueSource(PromptSource):
    """Rows that others put into a queue, such as annotators; what was taken does not come again.

    Args:
        rows_queue: of `queue` or `multiprocessing`; None in it ends the source.
        timeout_s: longest wait for a row.
    """

    comes_again = False

    @checked
    def __init__(
        self,
        rows_queue: Annotated[Any, having("a queue of `queue` or `multiprocessing`", "get")],
        timeout_s: float = 60.0,
    ) -> None:
        if not 0 <= timeout_s < inf:
            raise DataError(f"QueueSource: timeout_s = {timeout_s}; expected at least 0 seconds")
        self._queue, self._timeout_s = rows_queue, timeout_s

    def rows(self) -> Iterator[Mapping[str, Any]]:
        # No generator: it would have ended with the first time-out.
        return iter(self._take, None)

    def _take(self) -> Mapping[str, Any]:
        try:
            row: Mapping[str, Any] = self._queue.get(timeout=self._timeout_s)
        except queue.Empty:
            raise DataError(
                f"QueueSource: no row came within timeout_s = {self._timeout_s:g}; those before it "
                "are kept: read again"
            ) from None
        return row


class MessageSource(PromptSource):
    """Rows of messages, such as those of a Kafka consumer, which keeps the position itself.

    Args:
        consumer: gives messages when it is iterated.
        decode: a message as a row; its `.value`, which is a mapping or JSON, if None.
    """

    comes_again = False

    @checked
    def __init__(
        self, consumer: Iterable[Any], decode: Callable[[Any], Mapping[str, Any]] | None = None
    ) -> None:
        self._consumer, self._decode = consumer, decode or _value

    def rows(self) -> Iterator[Mapping[str, Any]]:
        return map(self._decode, self._consumer)


def _value(message: Any) -> Mapping[str, Any]:
    import json

    value = getattr(message, "value", message)
    if isinstance(value, str | bytes):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise DataError(f"a message is not JSON ({error}); give decode") from None
    if not isinstance(value, Mapping):
        raise DataError(f"a message is {type(value).__name__}; expected a mapping, or give decode")
    return value
