"""Follow the rows of a growing metrics.jsonl, without rereading it."""

from __future__ import annotations

import threading
from pathlib import Path

from verl_hpc.cli.status_progress import parse_row
from verl_hpc.config.regular_file import open_regular
from verl_hpc.metrics.log import FILE_NAME, Row


class MetricsTail:
    """Reads the lines that a run's metrics.jsonl gains; threads may share it.

    Args:
        run: run directory.
    """

    def __init__(self, run: Path) -> None:
        self._path = run / FILE_NAME
        self._lock = threading.Lock()
        self._file_id = -1
        self._position = 0
        self._rows: list[Row] = []

    def rows(self) -> list[Row]:
        """Return all whole rows so far; empty without a file."""
        with self._lock:
            try:
                self._read()
            except OSError:
                self._forget(-1)
            return list(self._rows)

    def _read(self) -> None:
        with open_regular(self._path) as file:
            file_id = self._path.stat().st_ino
            # A run that resumes replaces the file, without the steps that it redoes.
            if file_id != self._file_id or file.seek(0, 2) < self._position:
                self._forget(file_id)
            file.seek(self._position)
            data = file.read()
        whole = data[: data.rfind(b"\n") + 1]
        self._position += len(whole)
        self._rows += [row for row in map(parse_row, whole.splitlines()) if row is not None]

    def _forget(self, file_id: int) -> None:
        self._file_id, self._position, self._rows = file_id, 0, []
