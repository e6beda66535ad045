"""What the control plane needs of whatever carries it, and MPI as one.

Waiting polls with short sleeps instead of spinning inside MPI: other ranks may share the core,
and signal handlers and exceptions must get through while a rank waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

if TYPE_CHECKING:
    from mpi4py import MPI

Pending = Callable[[], bool]
"""An operation under way: true once it is over; its buffers must be left alone until then."""

_LONGEST_SLEEP_S = 0.002


def wait(pending: Pending, timeout_s: float = math.inf) -> None:
    """Return when the operation is over.

    Raises:
        TimeoutError: other ranks have not come so far in time.
    """
    pause = 0.0
    limit = time.monotonic() + timeout_s
    while not pending():
        if time.monotonic() > limit:
            raise TimeoutError(
                f"waited {timeout_s:g} s (runtime.collective_timeout_s) for ranks that do not come"
            )
        time.sleep(pause)
        pause = min(pause + 0.0001, _LONGEST_SLEEP_S)


class Channel(Protocol):
    """Starts collectives on numpy arrays; every rank starts the same ones in the same order."""

    rank: int
    size: int

    def split(self, group: int) -> Channel:
        """A channel of the ranks that give the same number; returns when all have."""

    def barrier(self) -> Pending:
        """Over when every rank has started it."""

    def allgather(self, value: Any, values: Any) -> Pending:
        """One element of every rank, into an array of all."""

    def allgatherv(self, data: Any, gathered: Any, sizes: Any) -> Pending:
        """Bytes of every rank one after the other; `sizes` are their numbers by rank."""

    def gatherv(self, data: Any, gathered: Any, sizes: Any, root: int) -> Pending:
        """The same on one rank; `gathered` counts there alone."""

    def broadcast(self, data: Any, root: int) -> Pending:
        """The root's elements into everybody's array."""


class MpiChannel:
    """An MPI communicator."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def split(self, group: int) -> MpiChannel:
        return MpiChannel(self._comm.Split(group, self.rank))

    def barrier(self) -> Pending:
        return self._pending(self._comm.Ibarrier())

    def allgather(self, value: Any, values: Any) -> Pending:
        return self._pending(self._comm.Iallgather(value, values))

    def allgatherv(self, data: Any, gathered: Any, sizes: Any) -> Pending:
        return self._pending(self._comm.Iallgatherv(data, [gathered, (sizes, _starts(sizes))]))

    def gatherv(self, data: Any, gathered: Any, sizes: Any, root: int) -> Pending:
        target = [gathered, (sizes, _starts(sizes))] if self.rank == root else None
        return self._pending(self._comm.Igatherv(data, target, root))

    def broadcast(self, data: Any, root: int) -> Pending:
        return self._pending(self._comm.Ibcast(data, root))

    def _pending(self, request: MPI.Request) -> Pending:
        def is_done() -> bool:
            if not request.Test():
                return False
            # This rank is done when MPI has taken what it sends; one more call sends it off.
            self._comm.Iprobe()
            return True

        return is_done


def _starts(sizes: Any) -> Any:
    """Where each rank's bytes begin."""
    return np.cumsum(sizes) - sizes
