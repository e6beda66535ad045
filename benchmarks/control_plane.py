"""How long ranks take to agree and to gather facts, beside MPI's own collectives.

Both wait in the same way, by looking again after longer sleeps (`verl_hpc/runtime/channel.py`).
MPI's are the non-blocking ones: sizes first, then what has these sizes.

usage: mpiexec -n 16 python -m benchmarks.control_plane [--markdown FILE] [--json FILE]
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.figures import machine, machine_markdown, markdown_table, report, spread
from verl_hpc.runtime.channel import MpiChannel, wait
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.mpi import start_mpi

REPEATS = 40
FACTS = 700_000
"""Bytes in all: facts of 16,384 samples."""


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args(argv)
    mpi: Any = start_mpi(60)
    control = Control(MpiChannel(mpi.COMM_WORLD))
    flag: Any = np.zeros(8, np.uint8)
    facts: Any = np.zeros(FACTS // control.size, np.uint8)
    record = {}
    for name, ours, theirs in (
        ("a flag", lambda: control.any(False), lambda: _gathered(mpi, flag)),
        ("700 kB", lambda: control.allgather_array(facts), lambda: _gathered(mpi, facts)),
    ):
        # In turn, so that whatever else runs on the cores meets both.
        pairs = [(_timed(control, ours), _timed(control, theirs)) for _ in range(REPEATS)]
        record[name] = {"ours": spread([a for a, _ in pairs]), "mpi": spread([b for _, b in pairs])}
    if control.rank == 0:
        _report(control.size, " ".join(mpi.Get_library_version().split()[0:3:2]), record, arguments)
    return 0


def _gathered(mpi: Any, data: Any) -> None:
    """Of all ranks, by MPI."""
    comm = mpi.COMM_WORLD
    sizes: Any = np.empty(comm.size, dtype=np.int64)
    wait(comm.Iallgather(np.array([data.size], dtype=np.int64), sizes).Test)
    gathered: Any = np.empty(int(sizes.sum()), np.uint8)
    starts = np.cumsum(sizes) - sizes
    wait(comm.Iallgatherv(data, [gathered, (sizes, starts)]).Test)


def _timed(control: Control, work: Callable[[], object]) -> float:
    control.barrier()
    begin = time.perf_counter()
    work()
    return time.perf_counter() - begin


def _report(size: int, library: str, record: dict[str, Any], arguments: Any) -> None:
    facts = machine(("verl_hpc", "mpi4py", "numpy"))
    rows = [
        (
            name,
            *(f"{1000 * r['ours'][of]:.2f}" for of in ("median", "max")),
            *(f"{1000 * r['mpi'][of]:.2f}" for of in ("median", "max")),
            f"{r['mpi']['median'] / r['ours']['median']:.1f}",
        )
        for name, r in record.items()
    ]
    header = ("what", "ms, median", "max", "MPI, median", "max", "ratio")
    text = "\n\n".join(
        (
            f"`mpiexec -n {size} python -m benchmarks.control_plane`",
            machine_markdown(facts),
            f"{library}; {REPEATS} repetitions, in turn.",
            markdown_table(header, rows),
        )
    )
    report(text, {"machine": facts, "ranks": size, **record}, arguments.markdown, arguments.json)


if __name__ == "__main__":
    sys.exit(main())
