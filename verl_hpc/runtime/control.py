"""The control plane: small metadata and agreement, over MPI or whatever else carries it."""

from __future__ import annotations

import math
import pickle
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import numpy as np

from verl_hpc.errors import VerlHpcError
from verl_hpc.runtime.channel import Channel, Pending, wait

T = TypeVar("T")


class Control:
    """Collectives on small Python values; every rank of the channel must take part.

    Args:
        channel: what carries them.
        timeout_s: a rank that waits longer for others raises TimeoutError.
        world: of every rank of the job, if this is of a part of them.
        ranks: of the job that it has; all if None.
    """

    def __init__(
        self,
        channel: Channel,
        timeout_s: float = math.inf,
        world: Control | None = None,
        ranks: Sequence[int] | None = None,
    ) -> None:
        self._channel = channel
        self._timeout_s = timeout_s
        self.rank = channel.rank
        self.size = channel.size
        self._world = world or self
        self.ranks = range(self.size) if ranks is None else ranks
        self.num_waits = 0
        """Waits begun; every rank begins the same ones in the same order."""
        self.waiting_since: float | None = None
        """Seconds since the epoch, of a wait in this control plane or in a part of it; None while
        this rank waits for nobody."""
        self.waiting_for: Sequence[int] = ()
        """Ranks that take part in that wait."""

    @property
    def is_world(self) -> bool:
        """Whether it has every rank of the job."""
        return self.size == self._world.size

    def split(self, group: int) -> Control:
        """The control plane of the ranks that give the same number; all ranks call it."""
        groups = self.allgather(group)
        ranks = [rank for rank, other in zip(self.ranks, groups, strict=True) if other == group]
        # A split cannot be given up as the other operations can; here it waits for nobody.
        return Control(self._channel.split(group), self._timeout_s, self._world, ranks)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        self._wait(self._channel.barrier())

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order."""
        data, sizes = self._sized(value)
        gathered: Any = np.empty(int(sizes.sum()), dtype=np.uint8)
        self._wait(self._channel.allgatherv(data, gathered, sizes))
        return _unpickle(gathered, sizes)

    def gather(self, value: T, root: int = 0) -> list[T]:
        """The values of all ranks on the root, in rank order; nothing elsewhere."""
        data, sizes = self._sized(value)
        gathered: Any = np.empty(int(sizes.sum()) if self.rank == root else 0, dtype=np.uint8)
        self._wait(self._channel.gatherv(data, gathered, sizes, root))
        return _unpickle(gathered, sizes) if self.rank == root else []

    def broadcast(self, value: T | None, root: int = 0) -> T:
        """The root's value on every rank."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8).copy()
        size = np.array([data.size], dtype=np.int64)
        self._wait(self._channel.broadcast(size, root))
        if self.rank != root:
            data = np.empty(int(size[0]), dtype=np.uint8)
        self._wait(self._channel.broadcast(data, root))
        return pickle.loads(data.tobytes())  # noqa: S301 (as below)

    def _sized(self, value: Any) -> tuple[Any, Any]:
        """A value as bytes, and how many every rank has."""
        data = np.frombuffer(pickle.dumps(value), dtype=np.uint8)
        sizes: Any = np.empty(self.size, dtype=np.int64)
        self._wait(self._channel.allgather(np.array([data.size], dtype=np.int64), sizes))
        return data, sizes

    def _wait(self, pending: Pending) -> None:
        self.num_waits += 1
        world = self._world
        world.waiting_for, world.waiting_since = self.ranks, time.time()
        wait(pending, self._timeout_s)
        world.waiting_since = None

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return any(self.allgather(flag))

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if it fails on one, it fails on all.

        The lowest failing rank's `VerlHpcError` is raised everywhere, so that ranks never part
        ways over bad input. Other exceptions propagate at once on the rank that met them. An error
        of some ranks of the job alone ends it, as any exception does.
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
        agreed.agreed, agreed.elsewhere = self.is_world, agreed is not failure
        raise agreed


def _unpickle(data: Any, sizes: Any) -> list[Any]:
    # These bytes were pickled a moment ago by ranks of this very program.
    pieces = np.split(data, np.cumsum(sizes)[:-1])
    return [pickle.loads(piece.tobytes()) for piece in pieces]  # noqa: S301
