"""Several training layouts in one process; Megatron-core sees the groups of one at a time.

Megatron-core keeps its groups in module globals, and reads them in many places where no argument
reaches. So during an engine's call the globals are those of its layout, and at all other times they
are unset: a call from outside fails instead of using the groups of another layout.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.utils import GlobalMemoryBuffer

from verl_hpc.engines.shared.groups import LayoutGroups
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.runtime.groups import Groups

UNSET: dict[str, Any] = {
    name: value
    for name, value in vars(parallel_state).items()
    if name.startswith("_") and name.isupper() and name.strip("_")
}
"""Megatron-core's globals without any layout."""


class MegatronGroups(LayoutGroups):
    """A layout's groups, which can be set as Megatron-core's globals.

    Args:
        layout: the sizes.
        groups: the registry in which `make` made them.
        buffer: scratch memory of sequence parallelism, one for the process.
    """

    def __init__(self, layout: TrainLayout, groups: Groups, buffer: GlobalMemoryBuffer) -> None:
        super().__init__(layout, groups)
        self._buffer = buffer

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Set Megatron-core's globals to this layout inside the context."""
        state = vars(parallel_state)
        before = {name: state[name] for name in UNSET}
        state.update(self.globals())
        try:
            yield
        finally:
            state.update(before)

    def globals(self) -> dict[str, Any]:
        """Return what initialize_model_parallel would set in a world of this layout's ranks."""
        ranks_of = dist.get_process_group_ranks
        stages, vpp = list(self.stages), self.layout.vpp
        return UNSET | {
            "_TENSOR_MODEL_PARALLEL_GROUP": self.tp,
            "_TENSOR_MODEL_PARALLEL_GLOBAL_RANKS": ranks_of(self.tp),
            "_PIPELINE_MODEL_PARALLEL_GROUP": self.pp,
            "_PIPELINE_GLOBAL_RANKS": stages,
            "_MODEL_PARALLEL_GROUP": self._model,
            "_MODEL_PARALLEL_GLOBAL_RANKS": ranks_of(self._model),
            "_EMBEDDING_GROUP": self._embedding,
            "_EMBEDDING_GLOBAL_RANKS": self._embedding and ranks_of(self._embedding),
            "_POSITION_EMBEDDING_GROUP": self._first,
            "_POSITION_EMBEDDING_GLOBAL_RANKS": self._first and ranks_of(self._first),
            "_DATA_PARALLEL_GROUP": self._replicas,
            "_DATA_PARALLEL_GROUP_GLOO": self.replicas_gloo,
            "_DATA_PARALLEL_GLOBAL_RANKS": ranks_of(self._replicas),
            "_DATA_PARALLEL_GROUP_WITH_CP": self.dp,
            "_DATA_PARALLEL_GROUP_WITH_CP_GLOO": self._dp_gloo,
            "_DATA_PARALLEL_GLOBAL_RANKS_WITH_CP": ranks_of(self.dp),
            "_INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP": self.dp,
            "_INTRA_PARTIAL_DATA_PARALLEL_GROUP_WITH_CP_GLOO": self._dp_gloo,
            "_CONTEXT_PARALLEL_GROUP": self.cp,
            "_CONTEXT_PARALLEL_GLOBAL_RANKS": ranks_of(self.cp),
            "_TENSOR_AND_CONTEXT_PARALLEL_GROUP": self.tp_cp,
            "_TENSOR_AND_DATA_PARALLEL_GROUP": self._tp_replicas,
            "_TENSOR_AND_DATA_PARALLEL_GROUP_WITH_CP": self._tp_dp,
            "_EXPERT_MODEL_PARALLEL_GROUP": self._ep,
            "_EXPERT_MODEL_PARALLEL_RANKS": ranks_of(self._ep),
            "_EXPERT_TENSOR_PARALLEL_GROUP": self._etp,
            "_EXPERT_TENSOR_AND_MODEL_PARALLEL_GROUP": self._expert,
            "_EXPERT_TENSOR_MODEL_PIPELINE_PARALLEL_GROUP": self._expert_model,
            "_EXPERT_DATA_PARALLEL_GROUP": self.edp,
            "_EXPERT_DATA_PARALLEL_GROUP_GLOO": self._edp_gloo,
            "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP": self.edp,
            "_INTRA_PARTIAL_EXPERT_DATA_PARALLEL_GROUP_GLOO": self._edp_gloo,
            "_INTRA_DISTRIBUTED_OPTIMIZER_INSTANCE_GROUP": self.everyone,
            "_VIRTUAL_PIPELINE_MODEL_PARALLEL_RANK": 0 if vpp > 1 else None,
            "_VIRTUAL_PIPELINE_MODEL_PARALLEL_WORLD_SIZE": vpp if vpp > 1 else None,
            "_GLOBAL_MEMORY_BUFFER": self._buffer,
        }


_started: dict[TrainLayout, MegatronGroups | None] = {}
"""Groups by layout; None if this rank is not in the layout."""


def start_layouts(groups: Groups, layouts: Sequence[TrainLayout], seed: int) -> None:
    """Make the groups of all layouts and seed the process; see `engines.factory`."""
    # The pipeline layout that Megatron-core logs for every stage is in the run's own log.
    logging.getLogger("megatron.core").setLevel(logging.WARNING)
    stop_layouts()
    for layout in layouts:
        LayoutGroups.make(layout, groups)
    buffer, rank = GlobalMemoryBuffer(), dist.get_rank()
    mine = [layout for layout in layouts if rank in layout.grid.ranks()]
    for layout in layouts:
        _started[layout] = MegatronGroups(layout, groups, buffer) if layout in mine else None
    # Some of Megatron-core's generators depend on the rank's place. Nothing draws from them while
    # dropout is 0, so layouts that give this rank different places can share one seed.
    tp_rank = mine[0].grid.coordinates(rank)["tp"] if mine else 0
    tensor_parallel.model_parallel_cuda_manual_seed(
        seed, tp_rank=tp_rank, ep_rank=0, etp_rank=tp_rank
    )


def stop_layouts() -> None:
    """Forget all layouts."""
    _started.clear()


def started(layout: TrainLayout) -> MegatronGroups:
    """Return the groups of a started layout that includes this rank."""
    groups = _started[layout]
    assert groups is not None, f"rank {dist.get_rank()} is not in {layout}"
    return groups


@contextmanager
def gathering_within(group: dist.ProcessGroup) -> Iterator[None]:
    """Make all_gather_object use `group` instead of the whole world inside this context.

    get_megatron_optimizer orders its parameter groups with it and takes no group, so it would wait
    for ranks of other layouts.
    """
    gather = dist.all_gather_object

    def within(found: list[Any], mine: Any) -> None:
        found[:] = [None] * group.size()
        gather(found, mine, group=group)

    with patch.object(dist, "all_gather_object", within):
        yield
