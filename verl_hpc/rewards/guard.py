"""Run code of the user inside a rank: with a time limit, without leaving a second rank, with the
working directory and torch's modes restored and its output limited; and describe what it raises."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, NoReturn, TextIO

from verl_hpc.runtime.limit import time_limit
from verl_hpc.runtime.log_lines import stamped

_logger = logging.getLogger(__name__)

MOST_CHARACTERS = 2**18
"""Most characters of one rank's scoring in a step, for each of its two streams."""
_MOST_TEXT = 2000
_TEXT_TIMEOUT_S = 10.0


@contextmanager
def guarded(timeout_s: float) -> Iterator[None]:
    """Run code of the user.

    A child that it forks and that returns would continue as a second rank with this one's
    connections: it ends here. Programs, and processes of multiprocessing, never come back.

    Raises:
        TimeLimitExceeded: the code takes longer than `timeout_s`.
    """
    process = os.getpid()
    try:
        with _state_kept(), time_limit(timeout_s):
            yield
    except BaseException as error:
        if os.getpid() != process:
            _end_child(error)
        raise
    if os.getpid() != process:
        _end_child(None)


@contextmanager
def _state_kept() -> Iterator[None]:
    """Restore the working directory, to which paths of the run's data and checkpoints may be
    relative, and torch's gradient mode, without which no step would train, and default dtype."""
    here = os.open(".", os.O_RDONLY | os.O_DIRECTORY)
    # Scoring needs no torch; in a rank it is there.
    torch = sys.modules.get("torch")
    if torch is not None:
        with_gradients, dtype = torch.is_grad_enabled(), torch.get_default_dtype()
    try:
        yield
    finally:
        with suppress(OSError):  # code of the user may have closed it
            os.fchdir(here)
            os.close(here)
        if torch is not None:
            torch.set_grad_enabled(with_gradients)
            torch.set_default_dtype(dtype)


def _end_child(error: BaseException | None) -> NoReturn:
    if isinstance(error, SystemExit):
        os._exit(error.code if isinstance(error.code, int) else int(error.code is not None))
    how = "" if error is None else f" with {describe(error)}"
    text = (
        f"verl_hpc: process {os.getpid()}, forked by code of the user, came back from it{how}, "
        "and ends here; end a child with os._exit, or use subprocess\n"
    )
    os.write(2, stamped(text).encode(errors="replace"))
    os._exit(1)


def describe(error: BaseException) -> str:
    """Describe what code of the user raised, in words for a log."""
    text = message(error)
    return text if isinstance(error, SystemExit) else f"{type(error).__name__}: {text}"


def message(error: BaseException) -> str:
    """Return the text of an exception of the user's code, which may run more of that code."""
    try:
        with guarded(_TEXT_TIMEOUT_S):
            if isinstance(error, SystemExit):
                return shortened(f"it calls sys.exit({error.code!r})")
            return shortened(str(error))
    except KeyboardInterrupt:
        raise
    except BaseException as second:
        return f"its text cannot be read ({type(second).__name__})"


def shortened(text: str) -> str:
    """Return a text, or the first 2,000 characters of a longer one."""
    if len(text) <= _MOST_TEXT:
        return text
    return f"{text[:_MOST_TEXT]}... ({_MOST_TEXT:,} of {len(text):,} characters)"


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
    capped = _Capped(sys.stdout), _Capped(sys.stderr)
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
