"""What the control plane needs of whatever carries it, and MPI as one.

Waiting polls with short sleeps instead of spinning inside MPI: other ranks may share the core,
and signal handlers and exceptions must get through while a rank waits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from mpi4py import MPI

Messages = Sequence[tuple[int, Any]]
"""The other rank and a contiguous array that is not empty; several to one rank arrive in order."""

Pending = Callable[[], bool]
"""An operation under way: true once it is over; its buffers must be left alone until then."""

_LONGEST_SLEEP_S = 0.002


def wait(pending: Pending, limit: float = math.inf) -> None:
    """Return when the operation is over.

    Args:
        limit: in seconds of `time.monotonic`.

    Raises:
        TimeoutError: other ranks have not come so far by then.
    """
    pause = 0.0
    while not pending():
        if time.monotonic() > limit:
            raise TimeoutError
        time.sleep(pause)
        pause = min(pause + 0.0001, _LONGEST_SLEEP_S)


class Channel(Protocol):
    """Carries numpy arrays between ranks."""

    rank: int
    size: int

    def split(self, group: int) -> Channel:
        """A channel of the ranks that give the same number; returns when all have."""

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        """Send arrays to ranks, and fill arrays with what ranks send."""


class MpiChannel:
    """An MPI communicator."""

    def __init__(self, comm: MPI.Comm) -> None:
        self._comm = comm
        self.rank: int = comm.Get_rank()
        self.size: int = comm.Get_size()

    def split(self, group: int) -> MpiChannel:
        return MpiChannel(self._comm.Split(group, self.rank))

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        from mpi4py.MPI import BYTE, Request

        requests = [self._comm.Irecv([data, BYTE], rank) for rank, data in receives]
        requests += [self._comm.Isend([data, BYTE], rank) for rank, data in sends]

        def is_done() -> bool:
            if not Request.Testall(requests):
                return False
            # This rank is done when MPI has taken what it sends; one more call sends it off.
            self._comm.Iprobe()
            return True

        return is_done
