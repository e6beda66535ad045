"""Process groups over parts of the ranks, one for every set of ranks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import torch.distributed as dist

Backend = Literal["gloo", "nccl"]


class Groups:
    """Groups by their ranks, however many layouts and engines use them.

    torch names a new group by a counter of the process, so every rank has to make every group, in
    one order, whether it is in it or not. `use_local_synchronization` is no way around that: it
    names a group by its ranks and by how many groups the process has, and ranks of pools that
    overlap in part have different numbers of them.

    A rank that is not in a group asks the job's store for nothing (torch 2.13, unless
    TORCH_DIST_INIT_BARRIER is set), and one that is does so a number of times that does not grow
    with the world (`runtime.gloo`). Groups of one rank would be as many as there are ranks: every
    rank makes its own instead, all in the same place of the order.
    """

    def __init__(self) -> None:
        self._made: dict[tuple[Backend, tuple[int, ...]], dist.ProcessGroup | None] = {}

    def make(self, groups: Iterable[Sequence[int]], backend: Backend | None = None) -> None:
        """Make those of `groups` that are not there yet; every rank of the world calls it alike.

        Where one of `groups` has one rank, every rank of the world has a group of its own then.

        Args:
            groups: ranks of each group, ascending.
            backend: nccl where the job has GPUs, gloo elsewhere, if None.
        """
        rank = dist.get_rank()
        for ranks in groups:
            key = _key(ranks if len(ranks) > 1 else (rank,), backend)
            if key not in self._made:
                group = dist.new_group(list(key[1]), backend=key[0])
                self._made[key] = group if rank in key[1] else None

    def mine(
        self, groups: Iterable[Sequence[int]], backend: Backend | None = None
    ) -> dist.ProcessGroup | None:
        """This rank's group among disjoint ones that `make` has made; None if it is in none."""
        rank = dist.get_rank()
        for ranks in groups:
            if rank in ranks:
                return self._made[_key(ranks, backend)]
        return None

    def close(self) -> None:
        """Free all groups; nobody may use them any more. Every rank of the world calls it."""
        # To a rank that still connects, one that has gone ahead and freed the group looks dead.
        dist.barrier()
        living = set(dist.distributed_c10d._world.pg_map)
        for group in self._made.values():
            if group is not None and group in living:
                dist.destroy_process_group(group)
        self._made.clear()


def _key(ranks: Sequence[int], backend: Backend | None) -> tuple[Backend, tuple[int, ...]]:
    on_gpus = "nccl" in dist.get_backend_config()
    return backend or ("nccl" if on_gpus else "gloo"), tuple(ranks)
