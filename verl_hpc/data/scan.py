"""One pass over all rows of a data set."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from verl_hpc.data.problem import Problem
from verl_hpc.data.progress import Progress
from verl_hpc.data.sources import Source
from verl_hpc.errors import DataError


def refuse(error: DataError) -> None:
    """What `scan` and others do with a bad row unless told otherwise.

    Raises:
        DataError: always.
    """
    raise error


def scan(
    source: Source, name: str, on_bad: Callable[[DataError], None] = refuse
) -> Iterator[tuple[int, Problem]]:
    """Row numbers and problems of all rows in order, but for those that cannot be used.

    Args:
        name: what the log calls the data set.
        on_bad: called with what is wrong with a row.

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
