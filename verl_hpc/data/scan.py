"""Pass over all rows of a data set, and log how far a long pass has come."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator

from verl_hpc.data.problem import Problem, Source
from verl_hpc.errors import DataError

TOLD_EVERY_S = 10.0
"""Least seconds between two lines."""

_logger = logging.getLogger(__name__)


class Progress:
    """Logs the progress of a pass, at most every `TOLD_EVERY_S` seconds."""

    def __init__(self) -> None:
        self._told = time.monotonic()

    def tell(self, name: str, done: int, total: int, what: str) -> None:
        """Log `name: done of total what` if the last line is old enough."""
        if time.monotonic() - self._told >= TOLD_EVERY_S:
            self._told = time.monotonic()
            _logger.warning("%s: %s of %s %s", name, f"{done:,}", f"{total:,}", what)


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
