"""One rank raising ends the whole job, with that rank's report first and whole."""

from __future__ import annotations

import contextlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import TYPE_CHECKING

from verl_hpc.errors import VerlHpcError
from verl_hpc.runtime.bootstrap import Bootstrap
from verl_hpc.runtime.debug.post_mortem import PostMortem
from verl_hpc.runtime.log_lines import stamped
from verl_hpc.runtime.supervise import Note

if TYPE_CHECKING:
    from torch.distributed import TCPStore

_GRACE_S = 2.0
"""What a rank that did not fail first leaves the first for its report."""

_HALF = 32 * 1024
"""Characters at both ends of a report."""


class FailureReporter:
    """Prints a failing rank's report; of several failing ranks, the first one's.

    It begins with the cause. The calls follow where the cause is no error for users, whose messages
    say all. Ranks that fail because another one is gone say so in one line.

    Args:
        rank: this one.
        size: ranks of the job.
        host: of this rank.
        note: of its parent, if it has one.
    """

    def __init__(self, rank: int, size: int, host: str, note: Note | None = None) -> None:
        self._rank = rank
        self._who = f"rank {rank} of {size} on {host}"
        self._note = note
        # Code of the user may close the stream, or put something else in its place.
        self._stderr = os.dup(2)
        self.store: TCPStore | None = None
        self.stage = "start-up"
        """What the rank is doing, for the report."""
        self.post_mortem: PostMortem | None = None
        """Leaves the variables of the calls, too, if it is wanted."""

    def enter(self, stage: str) -> None:
        """Say what the rank does now."""
        self.stage = stage
        if self._note is not None:
            self._note.enter(stage)

    def keep(self, error: BaseException) -> None:
        """Write a post-mortem, and open a debugger on a terminal."""
        if self.post_mortem is None:
            return
        file = self.post_mortem.write(error, self.stage)
        if file is not None:
            self._write(f"verl_hpc: {self._who}: variables are in {file}\n")
        self.post_mortem.debug(error)

    def report(self, error: BaseException) -> None:
        """Print why this rank fails: in full, with a post-mortem, if it is the first to fail, else
        in one line and after some seconds that leave the first rank time."""
        if self._is_first():
            text = f"{self._who} failed in {self.stage}: {_report_text(error)}"
            written = self._write(f"\nverl_hpc: {text}")
            self.keep(error)
        else:
            written = self._write(
                f"verl_hpc: {self._who} ended after another rank failed ({_summary(error)[:200]})\n"
            )
            # Aborting ends the first rank, too, which may be in the middle of its report.
            time.sleep(_GRACE_S)
        self._told(written)

    def report_agreed(self, error: VerlHpcError) -> None:
        """Print, once a job, a user's error that all ranks have, and leave a post-mortem of it."""
        self._told(self._rank != 0 or self._write(f"{type(error).__name__}: {error}\n"))
        if not error.elsewhere:
            self.keep(error)

    def _told(self, written: bool) -> None:
        if self._note is not None and written:
            self._note.told()

    def _is_first(self) -> bool:
        if self.store is None:
            return True
        try:
            return self.store.add("verl_hpc/failed", 1) == 1
        except RuntimeError:  # the store's host is gone: another rank failed first
            return False

    def _write(self, text: str) -> bool:
        """Whether that was possible."""
        with contextlib.suppress(Exception):
            sys.stdout.flush()
        try:
            # One write, so that the lines of two ranks do not mix.
            os.write(self._stderr, stamped(text).encode(errors="replace"))
        except OSError:
            return False
        return True


def _summary(error: BaseException) -> str:
    """The exception and the first line of its message."""
    return f"{type(error).__name__}: {next(iter(str(error).splitlines()), '')}"


def _report_text(error: BaseException) -> str:
    """The cause, and the calls below it."""
    if isinstance(error, VerlHpcError):
        return _cut(f"{type(error).__name__}: {error}\n")
    return _cut(f"{_summary(error)}\n{''.join(traceback.format_exception(error))}")


def _cut(text: str) -> str:
    """A text that a log can hold: without its middle if it has no end."""
    left_out = len(text) - 2 * _HALF
    if left_out <= 0:
        return text
    return f"{text[:_HALF]}\n... {left_out:,} characters are left out ...\n{text[-_HALF:]}"


@contextmanager
def ending_the_job(job: Bootstrap, reporter: FailureReporter) -> Iterator[None]:
    """Run the body; let any exception, also that of sys.exit, end every rank of the job within
    seconds.

    A user's error that all ranks raise alike (`Control.together`) is printed once, without a
    traceback.
    """
    try:
        yield
    except BaseException as error:
        if isinstance(error, VerlHpcError) and error.agreed:
            reporter.report_agreed(error)
            job.meet()
            # Now, since Python's end, which does so too, may wait for a thread of one rank.
            job.leave()
            sys.exit(1)
        reporter.report(error)
        job.abort(1)


def install_excepthook(job: Bootstrap, reporter: FailureReporter) -> None:
    """Also end the job for exceptions that reach the interpreter outside `ending_the_job`."""

    def hook(_: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        reporter.report(error.with_traceback(trace))
        job.abort(1)

    sys.excepthook = hook
