"""Follow the rows of a growing metrics.jsonl, without rereading it."""

from __future__ import annotations

import threading
from pathlib import Path

from verl_hpc.metrics.log import FILE_NAME, Row, parse_row
from verl_hpc.runs.logs.read import Tail


class MetricsTail:
    """Reads the lines that a run's metrics.jsonl gains; threads may share it.

    Args:
        run: run directory.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / FILE_NAME
        self._lock = threading.Lock()
        self._forget(-1)

    def rows(self) -> list[Row]:
        """Return all whole rows so far; empty without a file."""
        with self._lock:
            try:
                facts = self._path.stat()
                # A run that resumes replaces the file, without the steps that it redoes.
                if facts.st_ino != self._file_id or facts.st_size < self._tail.position:
                    self._forget(facts.st_ino)
                self._rows += filter(None, map(parse_row, self._tail.gained()))
            except OSError:
                self._forget(-1)
            return list(self._rows)

    def _forget(self, file_id: int) -> None:
        self._file_id, self._tail = file_id, Tail(self._path)
        self._rows: list[Row] = []
