"""Standard output of every verb: its reader may leave, such as `head`, and its disk may be full."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from verl_hpc.errors import VerlHpcError


class ReaderLeft(Exception):  # noqa: N818
    """Nobody reads what this verb prints, and it does nothing else."""


class OutputError(VerlHpcError):
    """What a verb prints cannot be written."""


class _Output(io.FileIO):
    """Standard output, which goes nowhere from the first byte on that cannot be written.

    Args:
        ends: whether a reader who leaves ends the verb; else it goes on without a word.
    """

    def __init__(self, descriptor: int, ends: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.ends = ends

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            # Python writes what is left once more at its exit.
            _lead_nowhere(self.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OutputError(
                    f"standard output: {error.strerror}; what follows is lost: send it elsewhere"
                ) from None
            if self.ends:
                raise ReaderLeft from None
            return memoryview(data).nbytes  # type: ignore[arg-type]


class _Text(io.TextIOWrapper):
    """Text for `_Output`; flushing notices that the reader has left, also when nothing is new."""

    def __init__(self, raw: _Output, plain: io.TextIOWrapper) -> None:
        super().__init__(
            raw if plain.write_through else io.BufferedWriter(raw),  # type: ignore[arg-type]
            encoding=plain.encoding,
            errors=plain.errors,
            line_buffering=plain.line_buffering,
            write_through=plain.write_through,
        )
        self.output = raw

    def flush(self) -> None:
        super().flush()
        reader = select.poll()
        reader.register(self.fileno(), 0)
        if self.output.ends and reader.poll(0):
            _lead_nowhere(self.fileno())
            raise ReaderLeft


@contextmanager
def standard_output(ends: bool) -> Iterator[None]:
    """Guard what the body prints; all of it is written when the body is over.

    Closed streams lead nowhere, as if they were /dev/null.

    Args:
        ends: the body only prints, perhaps for ever: a reader who leaves ends it.

    Raises:
        ReaderLeft: the reader has left, if `ends`.
        OutputError: what is printed cannot be written.
    """
    for descriptor, name in ((1, "stdout"), (2, "stderr")):
        if getattr(sys, name) is None:
            _lead_nowhere(descriptor)
            setattr(sys, name, open(descriptor, "w", closefd=False))  # noqa: SIM115
    plain = sys.stdout
    if plain is not sys.__stdout__ or not isinstance(plain, io.TextIOWrapper):
        yield
        return
    output = _Output(plain.fileno(), ends)
    sys.stdout = text = _Text(output, plain)
    try:
        yield
    finally:
        last, sys.stdout = sys.stdout, plain  # the body may have put something around ours
        output.ends = False  # the body is over as it is
        for stream in (last, text):
            stream.flush()


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
