"""The control plane without MPI: gloo, whose ranks meet at a torch store."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from verl_hpc.runtime import gloo
from verl_hpc.runtime.channel import Messages, Pending, wait
from verl_hpc.runtime.collectives import Peers, allgather


class GlooChannel:
    """A gloo group of its own, beside those of torch.distributed.

    Args:
        store: where ranks find each other; no other channel uses the same names in it.
        timeout_s: an operation that takes longer raises.
    """

    def __init__(self, store: dist.Store, rank: int, size: int, timeout_s: float) -> None:
        gloo.share_device()
        self.rank, self.size = rank, size
        self._store, self._timeout_s = store, timeout_s
        self._splits = 0
        timeout = timedelta(seconds=timeout_s)
        named = dist.PrefixStore("control", store)
        self._group: Any = c10d.ProcessGroupGloo(named, rank, size, timeout)
        self._waiter = ThreadPoolExecutor(1, "verl_hpc-gloo")

    def split(self, group: int) -> GlooChannel:
        peers = Peers(self.rank, self.size, lambda sent, got: wait(self.exchange(sent, got)))
        groups = allgather(peers, np.array([group]).view(np.uint8))[0].view(np.int64)
        members = np.flatnonzero(groups == group)
        self._splits += 1
        store = dist.PrefixStore(f"split{self._splits}.{group}", self._store)
        rank = int(np.searchsorted(members, self.rank))
        return GlooChannel(store, rank, len(members), self._timeout_s)

    def exchange(self, sends: Messages, receives: Messages) -> Pending:
        group = self._group
        works = [group.recv([_tensor(data)], rank, 0) for rank, data in receives]
        works += [group.send([_tensor(data)], rank, 0) for rank, data in sends]
        # Whether a message has arrived is known only to those who wait for it.
        done = self._waiter.submit(lambda: [work.wait() for work in works])

        def is_done() -> bool:
            if not done.done():
                return False
            done.result()  # Raises what the operation met.
            return True

        return is_done


def _tensor(array: Any) -> torch.Tensor:
    """Return a tensor over the array's memory, or over a copy if that is read-only."""
    return torch.from_numpy(array if array.flags.writeable else array.copy())
