"""Timestamps on the lines of a rank with its own log."""

from __future__ import annotations

import sys
import time
from typing import Any

from verl_hpc.runs.logs.read import TIME_FORMAT
from verl_hpc.runtime import environment


def stamp_output() -> None:
    """From now on what Python code prints has the time before each line, to the second.

    What native code writes has none; on a terminal, which shows lines as they come, nothing has.
    """
    if environment.has_rank_logs():
        sys.stdout, sys.stderr = Stamped(sys.stdout), Stamped(sys.stderr)  # type: ignore[assignment]


def stamped(text: str) -> str:
    """Whole lines as `stamp_output` would have them, for what goes past Python's streams."""
    return _stamp(text, True)[0] if environment.has_rank_logs() else text


class Stamped:
    """A stream that puts the time before each line; all else is the stream's own."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._at_start = True

    def write(self, text: str) -> int:
        told, self._at_start = _stamp(text, self._at_start)
        self._stream.write(told)
        return len(text)

    def writelines(self, lines: Any) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


def _stamp(text: str, at_start: bool) -> tuple[str, bool]:
    now = time.strftime(TIME_FORMAT)
    parts = []
    for index, part in enumerate(text.split("\n")):
        if index:
            parts.append("\n")
            at_start = True
        if part:
            parts.append(f"{now} {part}" if at_start else part)
            at_start = False
    return "".join(parts), at_start
