"""The control plane: small metadata and agreement, over MPI or whatever else carries it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import numpy as np

from verl_hpc.errors import VerlHpcError
from verl_hpc.runtime import collectives
from verl_hpc.runtime.channel import Channel, Messages, wait
from verl_hpc.runtime.collectives import Peers

T = TypeVar("T")
N = TypeVar("N", int, float)

_Failure = tuple[int, type[VerlHpcError], str]
"""The rank, and what it has met."""


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
        groups = self.allgather_array(np.array([group]))[0].tolist()
        ranks = [rank for rank, other in zip(self.ranks, groups, strict=True) if other == group]
        # A split cannot be given up as the other operations can; here it waits for nobody.
        channel = self._channel.split(group)
        return Control(channel, self._timeout_s, self._world, ranks)

    def barrier(self) -> None:
        """Wait until every rank is here."""
        with self._meeting("barrier") as peers:
            collectives.merge(peers, None, lambda *_: None)

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, in rank order; a rank alone gets its own, and no copy of it."""
        if self.size == 1:
            return [value]
        with self._meeting("allgather") as peers:
            return _loaded(*collectives.allgather(peers, collectives.dumped(value)))

    def allgather_array(self, rows: Any) -> tuple[Any, Any]:
        """Rows of all ranks in rank order, and how many each has, (size,) int64.

        For what grows with the batch: it travels as it is in memory.

        Args:
            rows: (n, ...) array; all but n are the same on every rank.
        """
        item = rows.dtype.itemsize * math.prod(rows.shape[1:])
        data = np.frombuffer(rows.tobytes(), np.uint8)
        with self._meeting("allgather") as peers:
            gathered, sizes = collectives.allgather(peers, data)
        return gathered.view(rows.dtype).reshape(-1, *rows.shape[1:]), sizes // item

    def gather(self, value: T, root: int = 0) -> list[T]:
        """The values of all ranks on the root, as `allgather` gives them; nothing elsewhere."""
        if self.size == 1:
            return [value]
        with self._meeting(f"gather to rank {root}") as peers:
            return _loaded(*collectives.gather(peers, collectives.dumped(value), root))

    def broadcast(self, value: T | None, root: int = 0) -> T:
        """The root's value on every rank."""
        data = collectives.dumped(value if self.rank == root else None)
        with self._meeting(f"broadcast from rank {root}") as peers:
            gathered: T = collectives.loaded(collectives.broadcast(peers, data, root))
        return gathered

    def merge(self, value: T, combine: Callable[[T, T], T]) -> T:
        """What all ranks' values combine to; of few messages however many ranks there are.

        Args:
            combine: in whatever order, and the same value more than once: a maximum, a union.
        """
        if self.size == 1:
            return value
        with self._meeting("merge") as peers:
            return collectives.merge(peers, value, combine)

    def exchange(self, sends: Messages, receives: Messages) -> None:
        """Send arrays to ranks of the job, and fill arrays with what ranks of the job send.

        Every rank of this control plane calls it; what each sends to each, both of them know.
        """
        place = {rank: index for index, rank in enumerate(self.ranks)}
        with self._meeting("exchange") as peers:
            peers.exchange(
                [(place[rank], data) for rank, data in sends],
                [(place[rank], data) for rank, data in receives],
            )

    @contextmanager
    def _meeting(self, name: str) -> Iterator[Peers]:
        """What ranks meet in, and for how long at most."""
        self.num_waits += 1
        world, limit = self._world, time.monotonic() + self._timeout_s
        world.waiting_for, world.waiting_since = self.ranks, time.time()

        def exchange(sends: Messages, receives: Messages) -> None:
            try:
                wait(self._channel.exchange(sends, receives), limit)
            except TimeoutError:
                raise TimeoutError(
                    f"waited {self._timeout_s:g} s (runtime.collective_timeout_s) for ranks that "
                    f"do not come to this {name}"
                ) from None

        yield Peers(self.rank, self.size, exchange)
        world.waiting_since = None

    def any(self, flag: bool) -> bool:
        """True on every rank if it is true on one."""
        return self.merge(flag, lambda one, other: one or other)

    def max(self, value: N) -> N:
        """The largest of all ranks' numbers."""
        return self.merge(value, lambda one, other: max(one, other))

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
        mine = None if failure is None else (self.rank, type(failure), str(failure))
        first = self.merge(mine, _lower)
        if first is None:
            return result
        rank, kind, text = first
        same = mine is not None and mine[1:] == (kind, text)
        agreed = failure if same else kind(f"{text} (on rank {rank})")
        assert agreed is not None
        agreed.agreed, agreed.elsewhere = self.is_world, agreed is not failure
        raise agreed


def _lower(one: _Failure | None, other: _Failure | None) -> _Failure | None:
    """Return the failure of the lower rank; None without any."""
    if one is None or other is None:
        return one or other
    return min(one, other, key=lambda failure: failure[0])


def _loaded(data: Any, sizes: Any) -> list[Any]:
    pieces = np.split(data, np.cumsum(sizes)[:-1]) if sizes.size else []
    return [collectives.loaded(piece) for piece in pieces]
