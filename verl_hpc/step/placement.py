"""A set of ranks that runs operators; an operator communicates only within its placement."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
import torch.distributed as dist

from verl_hpc.errors import VerlHpcError, agreed
from verl_hpc.placement.layouts import Pool

if TYPE_CHECKING:
    from verl_hpc.runtime.control import Control

E = TypeVar("E", bound=VerlHpcError)


class Placement:
    """One rank's view of a pool of ranks, with its control plane and reductions.

    Args:
        pool: the ranks, and how samples are assigned to them.
        rank: this rank's world rank.
        control: control plane of the pool's ranks in ascending order; None on other ranks.
        device: device of tensors.
        across: process group of ranks with this rank's place in each of the pool's groups; None
            with a single group, or outside.
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
        self.is_here = self._index is not None
        """Whether this rank is in the placement."""

    @cached_property
    def index(self) -> int:
        """Index of this rank's group."""
        assert self._index is not None, f"rank {self.rank} is not in {self.name}"
        return self._index

    @cached_property
    def group(self) -> Sequence[int]:
        """Ranks with the same samples as this one."""
        return self.groups[self.index]

    @cached_property
    def leads(self) -> bool:
        """Whether this is the placement's first rank."""
        return self.rank == self.ranks[0]

    @cached_property
    def leads_group(self) -> bool:
        return self.rank == self.group[0]

    @cached_property
    def control(self) -> Control:
        """Control plane of the placement's ranks."""
        assert self._control is not None, f"rank {self.rank} is not in {self.name}"
        return self._control

    def gather_rows(self, rows: Any) -> Any:
        """Gather the rows of all ranks, in rank order (`Control.allgather_array`)."""
        return self.control.allgather_array(rows)[0]

    def gather_of_groups(self, rows: Any) -> tuple[Any, Any]:
        """Gather each group's rows, and the group index of each row, (n,) int64; every rank passes
        its group's rows."""
        gathered, counts = self.control.allgather_array(rows if self.leads_group else rows[:0])
        group_of = {group[0]: index for index, group in enumerate(self.groups)}
        return gathered, np.repeat([group_of.get(rank, -1) for rank in self.ranks], counts)

    def reduce(self, tensor: torch.Tensor) -> torch.Tensor:
        """Sum a tensor over groups; each rank passes its group's value."""
        if len(self.groups) == 1:
            return tensor
        total = tensor.clone()
        dist.all_reduce(total, group=self._across)
        return total

    def alike(self, error: E) -> E:
        """Mark an error as raised by every rank of this placement."""
        return agreed(error) if self.is_world else error
