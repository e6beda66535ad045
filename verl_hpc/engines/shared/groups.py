"""Process groups of a training layout, for every engine."""

from __future__ import annotations

import torch
import torch.distributed as dist

from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.runtime.groups import Groups


class LayoutGroups:
    """The groups of a training layout that this rank is in.

    Args:
        layout: the sizes.
        groups: the registry in which `make` made them.
    """

    def __init__(self, layout: TrainLayout, groups: Groups) -> None:
        self.layout = layout
        grid = layout.grid
        rank = dist.get_rank()
        self.stages = next(ranks for ranks in grid.groups("pp") if rank in ranks)
        """This rank's pipeline, first stage first."""
        self.tp = _there(groups.mine(grid.groups("tp")))
        self.dp = _there(groups.mine(grid.groups("dp")))
        """Ranks with the same dense parameters."""
        self._dp_gloo = _there(groups.mine(grid.groups("dp"), "gloo"))
        data = layout.data_grid
        self.cp = _there(groups.mine(data.groups("cp")))
        """Ranks that share sequences."""
        self._replicas = _there(groups.mine(data.groups("dp")))
        self.replicas_gloo = _there(groups.mine(data.groups("dp"), "gloo"))
        """Ranks at the same place of all data-parallel replicas."""
        self.tp_cp = _there(groups.mine(data.groups("tp", "cp")))
        self._tp_replicas = _there(groups.mine(data.groups("tp", "dp")))
        self.pp = _there(groups.mine(grid.groups("pp")))
        experts = layout.expert_grid
        self.edp = _there(groups.mine(experts.groups("edp")))
        """Ranks with the same experts."""
        self._edp_gloo = _there(groups.mine(experts.groups("edp"), "gloo"))
        self._ep = _there(groups.mine(experts.groups("ep")))
        self._etp = _there(groups.mine(experts.groups("etp")))
        self._expert = _there(groups.mine(experts.groups("etp", "ep")))
        self._expert_model = _there(groups.mine(experts.groups("etp", "ep", "pp")))
        shards = layout.shard_grid
        self.shard = _there(groups.mine(shards.groups("shard")))
        """Ranks among which fully_shard divides parameters."""
        self.copies = _there(groups.mine(shards.groups("copy")))
        """Ranks with the same shard."""
        self.everyone = _there(groups.mine([grid.ranks()]))
        self._model = _there(groups.mine(grid.groups("tp", "pp")))
        self._tp_dp = _there(groups.mine(grid.groups("tp", "dp")))
        self._embedding = groups.mine(_embedding_groups(layout))
        self._first = groups.mine([ranks[:1] for ranks in grid.groups("pp")])

    @staticmethod
    def make(layout: TrainLayout, groups: Groups) -> None:
        """Make all groups of a layout; every rank of the world calls it."""
        grid = layout.grid
        for axes in (("tp",), ("dp",), ("pp",), ("tp", "pp"), ("tp", "dp")):
            groups.make(grid.groups(*axes))
        data = layout.data_grid
        for of_data in (("cp",), ("dp",), ("tp", "cp"), ("tp", "dp")):
            groups.make(data.groups(*of_data))
        groups.make(data.groups("dp"), "gloo")
        experts = layout.expert_grid
        for of_experts in (("edp",), ("ep",), ("etp",), ("etp", "ep"), ("etp", "ep", "pp")):
            groups.make(experts.groups(*of_experts))
        groups.make(grid.groups("dp"), "gloo")
        groups.make(experts.groups("edp"), "gloo")
        for of_shards in ("shard", "copy"):
            groups.make(layout.shard_grid.groups(of_shards))
        groups.make([grid.ranks()])
        groups.make([(rank,) for rank in grid.ranks()])
        groups.make(_embedding_groups(layout))

    def largest(self, one: int, other: int) -> tuple[int, int]:
        """Return the maximum of each number over all data-parallel replicas, which call it
        together."""
        numbers = torch.tensor([one, other])
        dist.all_reduce(numbers, dist.ReduceOp.MAX, group=self.replicas_gloo)
        return int(numbers[0]), int(numbers[1])


def _embedding_groups(layout: TrainLayout) -> list[tuple[int, ...]]:
    """Return first and last stage of every pipeline; both hold tied embeddings."""
    return [tuple(sorted({ranks[0], ranks[-1]})) for ranks in layout.grid.groups("pp")]


def _there(group: dist.ProcessGroup | None) -> dist.ProcessGroup:
    assert group is not None, "this rank is not in the layout"
    return group
