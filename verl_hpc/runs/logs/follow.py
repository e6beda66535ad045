"""Follow the logs of all nodes at once, and of the next start when the job starts again."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

from verl_hpc.config.regular_file import open_regular
from verl_hpc.runs.logs.read import Line, attempt_directory, attempts_of, node_logs, parse_line

SHOWN_AT_FIRST = 10
"""Existing lines of each node that are shown at first."""


class Follower:
    """Returns the lines that logs gain between two calls of `news`.

    Args:
        run: run directory.
        attempt: start to follow; None follows the last one, and those that come after it.
        rank: only this rank's lines.
    """

    def __init__(self, run: Path, attempt: int | None = None, rank: int | None = None) -> None:
        self._run = run
        self._rank = rank
        self._stays = attempt is not None
        self.directory = attempt_directory(run, attempt)
        self._positions: dict[Path, int] = {}
        self._halves: dict[Path, bytes] = {}
        self._started = False

    def news(self) -> Iterator[Line]:
        """Yield new whole lines; at the first call the last ones of each node."""
        first, self._started = not self._started, True
        yield from self._read(SHOWN_AT_FIRST if first else None)
        if not self._stays and self._moved_on():
            yield from self._read(None)

    def _moved_on(self) -> bool:
        latest = self._run / "job" / "attempts" / str(attempts_of(self._run)[-1])
        moved = latest != self.directory
        self.directory = latest
        return moved

    def _read(self, most: int | None) -> Iterator[Line]:
        for log in node_logs(self.directory):
            lines = (parse_line(log.stem, line) for line in self._gained(log))
            wanted = (line for line in lines if self._rank in (None, line.rank))
            yield from wanted if most is None else deque(wanted, maxlen=most)

    def _gained(self, log: Path) -> list[bytes]:
        """Return the whole lines that a file has gained; half a line waits for the rest."""
        with open_regular(log) as file:
            file.seek(self._positions.get(log, 0))
            data = file.read()
        self._positions[log] = self._positions.get(log, 0) + len(data)
        *lines, self._halves[log] = (self._halves.get(log, b"") + data).split(b"\n")
        return lines
