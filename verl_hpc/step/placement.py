"""Ranks that run operators together; an operator communicates within its placement only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from verl_hpc.errors import VerlHpcError, agreed
from verl_hpc.placement.layouts import Pool

if TYPE_CHECKING:
    from verl_hpc.runtime.control import Control

T = TypeVar("T")
E = TypeVar("E", bound=VerlHpcError)


class Placement:
    """A pool of ranks with its control plane and its reduction, as one of its ranks sees it.

    Args:
        pool: the ranks, and how samples are assigned to them.
        rank: this rank, in the world.
        control: of the pool's ranks in ascending order; None outside.
        device: where tensors are.
        across: this rank's process group over the pool's groups (ranks that have the same place in
            theirs); None where there is one group, or outside.
        is_world: whether the pool has all ranks of the job.
    """

    def __init__(
        self,
        pool: Pool,
        rank: int,
        control: Control | None,
        device: torch.device,
        across: dist.ProcessGroup | None = None,
        is_world: bool = True,
    ) -> None:
        self.name, self.ranks, self.groups = pool.name, pool.ranks, pool.groups
        self.rank, self.device, self.is_world = rank, device, is_world
        self._control, self._across = control, across
        self._index = next((i for i, group in enumerate(pool.groups) if rank in group), None)

    @property
    def is_here(self) -> bool:
        """Whether this rank belongs to it."""
        return self._index is not None

    @property
    def index(self) -> int:
        """Which of its groups this rank is in."""
        assert self._index is not None, f"rank {self.rank} is not in {self.name}"
        return self._index

    @property
    def group(self) -> Sequence[int]:
        """Ranks that have the same samples as this one."""
        return self.groups[self.index]

    @property
    def leads(self) -> bool:
        """Whether this is its first rank."""
        return self.rank == self.ranks[0]

    @property
    def leads_group(self) -> bool:
        return self.rank == self.group[0]

    @property
    def control(self) -> Control:
        """Of its ranks."""
        assert self._control is not None, f"rank {self.rank} is not in {self.name}"
        return self._control

    def together(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; if it fails on one, it fails on all (`Control.together`)."""
        return self.control.together(work)

    def allgather(self, value: T) -> list[T]:
        """The values of all ranks, in their order."""
        return self.control.allgather(value)

    def gather_rows(self, rows: Any) -> Any:
        """Rows of all ranks, in the ranks' order: `Control.allgather_array`."""
        return self.control.allgather_array(rows)[0]

    def gather_of_groups(self, rows: Any) -> tuple[Any, Any]:
        """Rows that each group has, and the group of each, (n,) int64; every rank calls it with
        its group's."""
        found, counts = self.control.allgather_array(rows if self.leads_group else rows[:0])
        group_of = {group[0]: index for index, group in enumerate(self.groups)}
        return found, np.repeat([group_of.get(rank, -1) for rank in self.ranks], counts)

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum over groups: each rank gives what its group has, and gets the sum of all groups."""
        if len(self.groups) == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total, group=self._across)
        return total

    def alike(self, error: E) -> E:
        """An error that every rank of this placement is about to raise."""
        return agreed(error) if self.is_world else error
