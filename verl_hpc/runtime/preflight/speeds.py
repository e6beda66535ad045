"""Seconds and GB/s of collectives over groups of ranks, by torch.distributed and by MPI.

GB/s are bus bandwidth as nccl-tests counts it (doc/PERFORMANCE.md there), so that numbers of
groups of different sizes compare with each other and with the wire: bytes / seconds, times
2 (n - 1) / n for an all-reduce, (n - 1) / n for an all-gather, and 1 for the others. Bytes are
those of the whole buffer; of an all-gather, of what every rank has in the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from verl_hpc.runtime.session import Session

Groups = Sequence[Sequence[int]]
"""Disjoint groups of ranks, all of one size, which work at the same time as they do in a run."""
OPERATIONS = ("all-reduce", "all-gather", "broadcast", "point-to-point")
REPEATS = 5


@dataclass(frozen=True)
class Speed:
    """Speed of one operation over the slowest of some groups."""

    groups: str
    num_groups: int
    num_ranks: int
    operation: str
    num_bytes: int
    seconds: float
    """Seconds by torch.distributed: NCCL in GPU memory, Gloo in host memory on CPU ranks."""
    mpi_seconds: float | None
    """Seconds by MPI in host memory; None where the job has no MPI."""

    @property
    def gb_s(self) -> float:
        return bus_gb_s(self.operation, self.num_bytes, self.num_ranks, self.seconds)

    @property
    def mpi_gb_s(self) -> float | None:
        if self.mpi_seconds is None:
            return None
        return bus_gb_s(self.operation, self.num_bytes, self.num_ranks, self.mpi_seconds)

    def to_data(self) -> dict[str, Any]:
        return asdict(self) | {"gb_s": self.gb_s, "mpi_gb_s": self.mpi_gb_s}


def bus_gb_s(operation: str, num_bytes: int, num_ranks: int, seconds: float) -> float:
    """See the module."""
    share = {"all-reduce": 2 * (num_ranks - 1), "all-gather": num_ranks - 1}
    return num_bytes / seconds * share.get(operation, num_ranks) / num_ranks / 1e9


def seconds_of(here: Session, call: Callable[[], object], repeats: int = REPEATS) -> float:
    """Seconds of one call, after one that opens the connections."""
    call()
    _settle(here)
    start = time.perf_counter()
    for _ in range(repeats):
        call()
    _settle(here)
    return (time.perf_counter() - start) / repeats


def _settle(here: Session) -> None:
    if here.world.device != "cpu":
        import torch

        torch.cuda.synchronize()


def measure(
    here: Session,
    groups: Mapping[str, Groups],
    sizes: Sequence[int],
    with_mpi: bool,
    repeats: int = REPEATS,
) -> Iterator[Speed]:
    """Every operation of every size, over every kind of group; all ranks call it.

    Args:
        groups: by what they are called; those of one rank are left out.
        sizes: bytes of a buffer, each a multiple of 4 x the ranks of a group or rounded up to one.
        with_mpi: whether ranks have MPI.
    """
    for name, chosen in groups.items():
        num_ranks = len(chosen[0])
        if num_ranks < 2:
            continue
        here.groups.make(chosen)
        mine = next((ranks for ranks in chosen if here.world.rank in ranks), None)
        comm = _communicator(here, chosen) if with_mpi else None
        for size in sizes:
            count = -(-size // (4 * num_ranks)) * num_ranks
            calls = _torch_calls(here, chosen, mine, count) if mine is not None else {}
            others = _mpi_calls(comm, count) if comm is not None and mine is not None else {}
            for operation in OPERATIONS:
                here.enter(f"{operation} over {name}")
                seconds = _slowest(here, calls.get(operation), repeats)
                mpi = _slowest(here, others.get(operation), repeats) if with_mpi else None
                yield Speed(name, len(chosen), num_ranks, operation, 4 * count, seconds, mpi)
        if comm is not None and mine is not None:
            comm.Free()


def _slowest(here: Session, call: Callable[[], object] | None, repeats: int) -> float:
    here.control.barrier()
    return here.control.max(0.0 if call is None else seconds_of(here, call, repeats))


def _torch_calls(
    here: Session, groups: Groups, mine: Sequence[int], count: int
) -> dict[str, Callable[[], object]]:
    import torch
    import torch.distributed as dist

    group = here.groups.mine(groups)
    data = torch.ones(count, device=here.device)
    part = torch.ones(count // len(mine), device=here.device)
    received = torch.empty_like(data)
    before, behind = _neighbours(mine, here.world.rank)

    def pass_on() -> None:
        works = dist.batch_isend_irecv(
            [
                dist.P2POp(dist.isend, data, behind, group=group),
                dist.P2POp(dist.irecv, received, before, group=group),
            ]
        )
        for work in works:
            work.wait()

    return {
        "all-reduce": lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group),
        "all-gather": lambda: dist.all_gather_into_tensor(received, part, group=group),
        "broadcast": lambda: dist.broadcast(data, src=mine[0], group=group),
        "point-to-point": pass_on,
    }


def _neighbours(ranks: Sequence[int], rank: int) -> tuple[int, int]:
    """Before and behind it, in a ring."""
    place = list(ranks).index(rank)
    return ranks[place - 1], ranks[(place + 1) % len(ranks)]


def _communicator(here: Session, groups: Groups) -> Any:
    """Return the communicator of this rank's group; MPI's null communicator without one."""
    from mpi4py import MPI

    number = next((n for n, g in enumerate(groups) if here.world.rank in g), MPI.UNDEFINED)
    return MPI.COMM_WORLD.Split(number, here.world.rank)


def _mpi_calls(comm: Any, count: int) -> dict[str, Callable[[], object]]:
    from mpi4py import MPI

    data: Any = np.ones(count, np.float32)
    received: Any = np.empty(count, np.float32)
    part: Any = np.ones(count // comm.size, np.float32)
    before, behind = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    return {
        "all-reduce": lambda: comm.Allreduce(data, received, op=MPI.MAX),
        "all-gather": lambda: comm.Allgather(part, received),
        "broadcast": lambda: comm.Bcast(data, root=0),
        "point-to-point": lambda: comm.Sendrecv(data, behind, recvbuf=received, source=before),
    }
