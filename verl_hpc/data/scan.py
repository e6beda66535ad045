"""Pass over all rows of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from verl_hpc.data.problem import Problem
from verl_hpc.data.progress import Progress
from verl_hpc.data.sources import Source
from verl_hpc.errors import DataError


def refuse(error: DataError) -> None:
    """Raise the error of a bad row: the default of `scan` and others.

    Raises:
        DataError: always.
    """
    raise error


def scan(
    source: Source, name: str, on_bad: Callable[[DataError], None] = refuse
) -> Iterator[tuple[int, Problem]]:
    """Yield row numbers and problems of all usable rows in order.

    Args:
        name: name of the data set in the log.
        on_bad: called with the error of a row that cannot be used.

    Raises:
        DataError: what `on_bad` raises.
    """
    progress = Progress()
    for row, item in enumerate(source.scan()):
        if isinstance(item, DataError):
            on_bad(item)
        else:
            yield row, item
        progress.tell(name, row + 1, len(source), "rows checked")
