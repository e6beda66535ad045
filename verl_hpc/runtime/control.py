"""The control plane: small metadata and agreement over MPI.

Waiting polls with short sleeps instead of spinning inside MPI: other ranks may share the core,
and signal handlers and exceptions must get through while a rank waits.
"""

from __future__ import annotations

import pickle
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from verl_hpc.errors import VerlHpcError

if TYPE_CHECKING:
    from mpi4py import MPI

T = TypeVar("T")

_LONGEST_SLEEP_S = 0.002


class Control:
    """Collectives on small Python values; every rank of the communicator must take part."""

    def __init__(self, comm: MPI.Comm) -> None:
        self.comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()
        self.num_waits = 0
        """Waits begun; every rank begins the same ones in the same order."""
        self.waiting_since: float | None = None
        """Seconds since the epoch; None while this rank waits for nobody."""

    def split(self, group: int) -> Control:
        """The control plane of the ranks that give the same number; all ranks call it."""
        return Control(self.comm.Split(group, self.rank))

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._wait(self.comm.Ibarrier())

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes: Any = np.empty(self.size, dtype=np.int64)
        self._wait(self.comm.Iallgather(np.array([data.size], dtype=np.int64), sizes))
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        gathered: Any = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._wait(self.comm.Iallgatherv(data, [gathered, (sizes, starts)]))
        return _unpickle(gathered, starts, sizes)

    def gather(self, value: T, root: int = 0) -> list[T]:
        """The values of all ranks on the root, in rank order; nothing elsewhere."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes: Any = np.empty(self.size, dtype=np.int64)
        self._wait(self.comm.Iallgather(np.array([data.size], dtype=np.int64), sizes))
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
        if self.rank != root:
            self._wait(self.comm.Igatherv(data, None, root))
            return []
        gathered: Any = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._wait(self.comm.Igatherv(data, [gathered, (sizes, starts)], root))
        return _unpickle(gathered, starts, sizes)

    def broadcast(self, value: T | None, root: int = 0) -> T:
        """The root's value on every rank."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy()
        size = np.array([data.size], dtype=np.int64)
        self._wait(self.comm.Ibcast(size, root))
        if self.rank != root:
            data = np.empty(int(size[0]), dtype=np.uint8)
        self._wait(self.comm.Ibcast(data, root))
        return pickle.loads(data.tobytes())  # noqa: S301 (as above)

    def _wait(self, request: MPI.Request) -> None:
        self.num_waits += 1
        self.waiting_since = time.time()
        pause = 0.0
        while not request.Test():
            time.sleep(pause)
            pause = min(pause + 0.0001, _LONGEST_SLEEP_S)
        self.waiting_since = None

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return any(self.allgather(flag))

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if it fails on one, it fails on all.

        The lowest failing rank's `VerlHpcError` is raised everywhere, so that ranks never part
        ways over bad input. Other exceptions propagate at once on the rank that met them.
        """
        result: Any = None
        failure: VerlHpcError | None = None
        try:
            result = work()
        except VerlHpcError as error:
            failure = error
        described = None if failure is None else (type(failure), str(failure))
        failures = [(r, f) for r, f in enumerate(self.allgather(described)) if f is not None]
        if not failures:
            return result
        rank, (kind, text) = failures[0]
        agreed = failure if described == failures[0][1] else kind(f"{text} (on rank {rank})")
        assert agreed is not None
        agreed.agreed = True
        raise agreed


def _unpickle(data: Any, starts: Any, sizes: Any) -> list[Any]:
    # These bytes were pickled a moment ago by ranks of this very program.
    return [
        pickle.loads(data[a : a + n].tobytes())  # noqa: S301
        for a, n in zip(starts, sizes, strict=True)
    ]
