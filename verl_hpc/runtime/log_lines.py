"""Timestamps on the lines of a rank with its own log."""

from __future__ import annotations

import re
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
    now = f"{time.strftime(TIME_FORMAT)} "
    told = re.sub("(?m)^(?=.)", now, text)
    if not at_start and not text.startswith("\n"):
        told = told.removeprefix(now)
    return told, text.endswith("\n") if text else at_start
