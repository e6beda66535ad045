"""A rank that writes the stacks of its threads when it is sent a signal, or crashes."""

from __future__ import annotations

import faulthandler
from pathlib import Path

from verl_hpc.runs.stacks.stack import DIRECTORY, SIGNAL, stack_file


def write_stacks_on_signal(run_directory: Path, rank: int) -> None:
    """From now on `stacks.SIGNAL` appends the stacks of all threads to this rank's file, and so
    does a crash in native code.

    C code does it, so that it works in the middle of anything, also where Python code does not run.

    Raises:
        OSError: the run directory cannot be written.
    """
    (run_directory / DIRECTORY).mkdir(exist_ok=True)
    # Open for as long as the process lives: a rank that hangs may not be able to open a file.
    path = stack_file(run_directory, rank)
    path.unlink(missing_ok=True)  # a pipe of this name would wait for a reader
    file = path.open("w", encoding="utf-8")
    faulthandler.register(SIGNAL, file=file, all_threads=True, chain=False)
    faulthandler.enable(file=file, all_threads=True)
