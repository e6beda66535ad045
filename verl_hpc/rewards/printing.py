"""Limit what code of the user prints into a log."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TextIO

_logger = logging.getLogger(__name__)

MOST_CHARACTERS = 2**18
"""Most characters of one rank's scoring in a step, for each of its two streams."""


class _Capped:
    """A stream that writes `MOST_CHARACTERS` and drops the rest."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self.num_written = 0

    def write(self, text: str) -> int:
        room = max(MOST_CHARACTERS - self.num_written, 0)
        self.num_written += len(text)
        if room:
            self._stream.write(text[:room])
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)


@contextmanager
def capped_output(who: str) -> Iterator[None]:
    """Let the block print up to `MOST_CHARACTERS`, and log how many it printed if more.

    Only output through sys.stdout and sys.stderr counts. Programs that it starts, and libraries in
    other languages, write to the descriptors themselves.

    Args:
        who: the code that prints, for the message.
    """
    streams = sys.stdout, sys.stderr
    capped = [_Capped(stream) for stream in streams]
    sys.stdout, sys.stderr = capped  # type: ignore[assignment]
    try:
        yield
    finally:
        # A stream that code of the user has put in their place stays.
        if sys.stdout is capped[0]:
            sys.stdout = streams[0]
        if sys.stderr is capped[1]:
            sys.stderr = streams[1]
        for name, stream in zip(("stdout", "stderr"), capped, strict=True):
            if stream.num_written > MOST_CHARACTERS:
                _logger.warning(
                    "%s has printed %s characters to %s; those after the first %s are not logged",
                    who, f"{stream.num_written:,}", name, f"{MOST_CHARACTERS:,}",
                )  # fmt: skip
