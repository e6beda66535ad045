"""The control plane without MPI: gloo, whose ranks meet at a torch store."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.distributed_c10d as c10d

from verl_hpc.runtime import gloo
from verl_hpc.runtime.channel import Pending, wait


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

    def split(self, group: int) -> GlooChannel:
        groups: Any = np.empty(self.size, dtype=np.int64)
        wait(self.allgather(np.array([group], dtype=np.int64), groups))
        members = np.flatnonzero(groups == group)
        self._splits += 1
        store = dist.PrefixStore(f"split{self._splits}.{group}", self._store)
        rank = int(np.searchsorted(members, self.rank))
        return GlooChannel(store, rank, len(members), self._timeout_s)

    def barrier(self) -> Pending:
        return _pending(self._group.barrier())

    def allgather(self, value: Any, values: Any) -> Pending:
        return _pending(self._group._allgather_base(_tensor(values), _tensor(value)))

    def allgatherv(self, data: Any, gathered: Any, sizes: Any) -> Pending:
        # gloo gathers equal pieces only.
        padded = torch.empty((self.size, int(sizes.max())), dtype=torch.uint8)
        work = self._group._allgather_base(padded.view(-1), _padded(data, padded.shape[1]))
        return _pending(work, lambda: _unpad(padded, sizes, gathered))

    def gatherv(self, data: Any, gathered: Any, sizes: Any, root: int) -> Pending:
        longest = int(sizes.max())
        options = c10d.GatherOptions()
        options.rootRank = root
        if self.rank != root:
            return _pending(self._group.gather([], [_padded(data, longest)], options))
        padded = torch.empty((self.size, longest), dtype=torch.uint8)
        work = self._group.gather([list(padded)], [_padded(data, longest)], options)
        return _pending(work, lambda: _unpad(padded, sizes, gathered))

    def broadcast(self, data: Any, root: int) -> Pending:
        options = c10d.BroadcastOptions()
        options.rootRank = root
        return _pending(self._group.broadcast([_tensor(data)], options))


def _pending(work: Any, after: Any = None) -> Pending:
    def is_done() -> bool:
        if not work.is_completed():
            return False
        # Raises what the operation met.
        work.wait()
        if after is not None:
            after()
        return True

    return is_done


def _tensor(array: Any) -> torch.Tensor:
    """The same memory."""
    return torch.from_numpy(array)


def _padded(data: Any, size: int) -> torch.Tensor:
    padded = torch.zeros(size, dtype=torch.uint8)
    padded[: data.size] = torch.from_numpy(data.copy())
    return padded


def _unpad(padded: torch.Tensor, sizes: Any, gathered: Any) -> None:
    pieces = [row[:n].numpy() for row, n in zip(padded, sizes.tolist(), strict=True)]
    np.concatenate(pieces, out=gathered)
