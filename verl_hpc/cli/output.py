"""Output of verbs: files, and standard output, whose reader may leave, such as `head`, or whose
disk may be full."""

from __future__ import annotations

import io
import os
import select
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from verl_hpc.errors import ConfigError, VerlHpcError


class ReaderLeft(Exception):  # noqa: N818
    """The reader has left a verb that only prints."""


class OutputError(VerlHpcError):
    """Output of a verb cannot be written."""


class _Output(io.FileIO):
    """Standard output that discards everything after the first failed write.

    Args:
        ends: whether the verb ends when its reader leaves; else it continues silently.
    """

    def __init__(self, descriptor: int, ends: bool) -> None:
        super().__init__(descriptor, "w", closefd=False)
        self.ends = ends

    def write(self, data: object) -> int:
        try:
            return super().write(data)  # type: ignore[arg-type]
        except OSError as error:
            # At exit Python tries again to write what is left.
            _lead_nowhere(self.fileno())
            if not isinstance(error, BrokenPipeError):
                raise OutputError(
                    f"standard output: {error.strerror}; what follows is lost: send it elsewhere"
                ) from None
            if self.ends:
                raise ReaderLeft from None
            return memoryview(data).nbytes  # type: ignore[arg-type]


class _Text(io.TextIOWrapper):
    """Text stream on `_Output`; a flush notices that the reader has left, even without new text."""

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


def write_file(option: str, path: Path, text: str) -> None:
    """Write a file that an option names.

    Raises:
        ConfigError: it cannot be written.
    """
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"{option} {path}: {error.strerror}; choose another file") from None


@contextmanager
def standard_output(ends: bool) -> Iterator[None]:
    """Guard the output of the block; all of it is written at its end.

    Closed streams are replaced by /dev/null.

    Args:
        ends: whether the block only prints, perhaps without end, so that it ends when the reader
            leaves.

    Raises:
        ReaderLeft: the reader has left, if `ends`.
        OutputError: the output cannot be written.
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
        last, sys.stdout = sys.stdout, plain  # the block may have wrapped our stream
        output.ends = False  # the block is over in any case
        for stream in (last, text):
            stream.flush()


def _lead_nowhere(descriptor: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    if nowhere != descriptor:
        os.dup2(nowhere, descriptor)
        os.close(nowhere)
