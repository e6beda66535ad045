"""What a checkpoint costs: a save's fixed cost, its rate, its stall, and the rate of reading it.

Four measurements, each against a limit that was there in the same run. Writing: plain sequential
writes of the same bytes into one file a rank, with the same fsync, in turn with ours. Reading a
slice of columns: reading the whole. A save in the background: its own time, in a real run. The
fixed cost has no rival: it is CPU time of a save of next to nothing.

    mpiexec -n 4 python -m benchmarks.checkpoint --directory DIR --markdown FILE --json FILE
"""

from __future__ import annotations

import argparse
import os
import shlex
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.checkpoint_runs import measure_fixed_cost, measure_stall
from benchmarks.checkpoint_tables import checkpoint_markdown
from benchmarks.figures import MIB, machine, report, spread
from benchmarks.launch import shown
from verl_hpc.runtime.session import Session, session

if TYPE_CHECKING:
    import torch

PACKAGES = ("torch", "numpy", "h5py", "xxhash", "mpi4py")
ROWS, COLUMNS = 4096, 4096
PLAIN_BYTES = 8 * MIB
SLICES = (2, 4, 8)
PARTS = ("fixed", "write", "read", "stall")


def main() -> int:
    """Command line of this module."""
    arguments = _parse()
    directory: Path = arguments.directory
    with session(device="cpu", threads_per_rank=arguments.threads) as here:
        if here.world.rank == 0:
            directory.mkdir(parents=True, exist_ok=True)
        here.control.barrier()
        facts = machine(PACKAGES)
        measure = {
            "fixed": lambda: measure_fixed_cost(here, directory / "fixed", arguments.repetitions),
            "write": lambda: _measure_writing(here, directory, arguments),
            "read": lambda: _measure_reading(here, directory, arguments),
            "stall": lambda: measure_stall(here, directory / "stall", arguments.steps),
        }
        record: dict[str, Any] = {part: measure[part]() for part in arguments.parts}
        if here.world.rank == 0:
            words = ["mpiexec", "-n", str(here.world.size), "python", "-m", "benchmarks.checkpoint"]
            record |= {"command": shlex.join([*words, *shown(sys.argv[1:])]), "machine": facts}
            report(checkpoint_markdown(record), record, arguments.markdown, arguments.json)
    return 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.checkpoint",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--directory", type=Path, required=True, help="on the file system that is measured")
    add("--matrices", type=int, default=4, help="of 64 MiB, that each rank writes")
    add("--repetitions", type=int, default=11, metavar="K")
    add("--steps", type=int, default=16, help="of the run whose steps are timed")
    add("--threads", type=int, metavar="N", help="of each rank; a share of the cores by itself")
    add("--parts", nargs="+", choices=PARTS, default=PARTS, help="to measure; all by default")
    add("--json", type=Path, metavar="FILE")
    add("--markdown", type=Path, metavar="FILE")
    return parser.parse_args()


def _tensors(arguments: argparse.Namespace) -> dict[str, torch.Tensor]:
    import torch

    return {f"m{i}": torch.randn(ROWS, COLUMNS) for i in range(arguments.matrices)}


def _measure_writing(
    here: Session, directory: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """All ranks write at once, each its own file, from memory that has the bytes already."""
    from verl_hpc.checkpoint.host_copy import HostCopy
    from verl_hpc.checkpoint.tensor_file import Stored, TensorFile

    tensors = _tensors(arguments)
    stored = [Stored(name, t.dtype, tuple(t.shape)) for name, t in tensors.items()]
    file, copy = TensorFile(stored), HostCopy(stored, on_gpu=False)
    copy.take(tensors.values())
    path = directory / f"rank_{here.world.rank}.h5"
    ways = {
        "checkpoint": lambda: file.write(path, copy.parts()),
        "plain": lambda: _write_plainly(path, copy),
    }
    found: dict[str, dict[str, list[float]]] = {w: {"seconds": [], "cpu": []} for w in ways}
    for repetition in range(-1, arguments.repetitions):
        order = list(ways) if repetition % 2 else list(ways)[::-1]
        for way in order:
            path.unlink(missing_ok=True)
            seconds, cpu = _timed(here, ways[way])
            if repetition >= 0:
                found[way]["seconds"].append(seconds)
                found[way]["cpu"].append(cpu)
    path.unlink()
    return {
        "bytes_per_rank": sum(s.num_bytes for s in stored),
        **{w: {name: spread(values) for name, values in f.items()} for w, f in found.items()},
    }


def _write_plainly(path: Path, copy: Any) -> None:
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    for part in copy.parts():
        for start in range(0, part.nbytes, PLAIN_BYTES):
            os.write(descriptor, part[start : start + PLAIN_BYTES].data)
    os.fsync(descriptor)
    os.close(descriptor)


def _timed(here: Session, work: Callable[[], object]) -> tuple[float, float]:
    """Seconds, of the mean rank, and CPU seconds of the mean rank; all begin together."""
    if here.world.rank == 0:
        os.sync()
    here.control.barrier()
    begin, cpu = time.perf_counter(), time.process_time()
    work()
    spent = time.perf_counter() - begin, time.process_time() - cpu
    everyone = here.control.allgather(spent)
    return tuple(statistics.mean(values) for values in zip(*everyone, strict=True))  # type: ignore[return-value]


def _measure_reading(
    here: Session, directory: Path, arguments: argparse.Namespace
) -> dict[str, Any]:
    """One rank alone reads what it wrote, from the page cache and from the disk."""
    found: dict[str, Any] = {}
    if here.world.rank == 0:
        from verl_hpc.checkpoint.tensor_file import write_tensors

        path = directory / "read.h5"
        tensors = _tensors(arguments)
        write_tensors(path, tensors)
        for place in ("page cache", "disk"):
            rates: dict[str, list[float]] = {}
            for _ in range(arguments.repetitions):
                for parts in (1, *SLICES):
                    with _cache(path, place):
                        rate = _read_rate(path, tensors, parts)
                    rates.setdefault(f"1/{parts}", []).append(rate)
            found[place] = {name: spread(values) for name, values in rates.items()}
        path.unlink()
    here.control.barrier()
    return found


@contextmanager
def _cache(path: Path, place: str) -> Iterator[None]:
    """What the system remembers of a file: all, or nothing."""
    if place == "disk":
        descriptor = os.open(path, os.O_RDONLY)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)
    yield


def _read_rate(path: Path, tensors: Mapping[str, torch.Tensor], parts: int) -> float:
    """Bytes that were asked for, a second, of the last 1/parts of the columns of every matrix."""
    from verl_hpc.checkpoint.datasets import open_file, read_dataset
    from verl_hpc.layout.box import Box

    box = Box((0, COLUMNS - COLUMNS // parts), (ROWS, COLUMNS))
    num_bytes, seconds = 0, 0.0
    with open_file(path) as file:
        for name, tensor in tensors.items():
            begin = time.perf_counter()
            read = read_dataset(file, name, box)
            seconds += time.perf_counter() - begin
            assert read.equal(tensor[box.slices]), "read back wrong"
            num_bytes += read.nbytes
    return num_bytes / seconds


if __name__ == "__main__":
    sys.exit(main())
