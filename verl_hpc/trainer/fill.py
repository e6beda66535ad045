"""Fill the tensors of an engine from files."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.runtime.session import Session
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import Reader


def fill(
    session: Session,
    source: ShardMap,
    reader: Reader,
    target: ShardMap,
    tensors: Mapping[str, torch.Tensor],
) -> None:
    """Read what this rank needs; every rank takes part, with or without an engine.

    Args:
        source: shard map of the files.
        reader: reads them.
        target: shard map of the engine.
        tensors: the engine's on this rank, by local name.
    """
    together, world = session.control.together, session.world
    plan = together(lambda: plan_transfer(source, target, world.node_of))
    dtypes = {n: getattr(torch, spec.dtype) for n, spec in target.tensors.items()}
    Transfer(plan, world.rank, reader).run({}, tensors, dtypes, together)
