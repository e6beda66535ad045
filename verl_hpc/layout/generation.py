"""How training ranks regroup for generation.

Source: HybridFlow (arXiv 2409.19256), section 5.3. There `p-t-d` are the training sizes and
`p_g-t_g-d_g-d` the generation sizes, with `p*t = p_g*t_g*d_g`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hpc.errors import LayoutError
from verl_hpc.layout.grid import RankGrid

Grouping = Literal["zero_redundancy", "contiguous"]


@dataclass(frozen=True)
class GenerationGroups:
    """Model-parallel groups of the generation engines, each in tensor-parallel order.

    `tensor_parallel_groups[k]` are the ranks of replica k; `micro_data_parallel_groups` are the
    training model-parallel ranks that hold the same generation shard.
    """

    tensor_parallel_groups: tuple[tuple[int, ...], ...]
    micro_data_parallel_groups: tuple[tuple[int, ...], ...]


def zero_redundancy_applies(train_tp: int, rollout_tp: int) -> bool:
    """Whether a rank can keep its training shard inside its generation shard."""
    return train_tp % rollout_tp == 0


def generation_groups(
    train: RankGrid, rollout_tp: int, grouping: Grouping = "zero_redundancy"
) -> GenerationGroups:
    """Cut the ranks of a training grid (axes tp, dp, pp) into generation groups, p_g = 1.

    Zero redundancy picks the ranks of a tensor-parallel group at intervals of `t / t_g`, so that
    every rank's training shard lies inside its generation shard. Training 1-4-2 (p-t-d) to
    generation 1-2-2-2 on 8 ranks::

        training tp groups    [0 1 2 3] [4 5 6 7]
        generation tp groups  [0 2] [1 3]     [4 6] [5 7]
        micro-dp groups       [0 1] [2 3]     [4 5] [6 7]

    `contiguous` takes neighbours ([0 1] [2 3] [4 5] [6 7]): what an engine does by itself, and the
    only grouping where `t` is not a multiple of `t_g`.

    Raises:
        LayoutError: the sizes do not divide.
    """
    if train.size % rollout_tp:
        raise LayoutError(
            f"rollout tensor_parallel = {rollout_tp} does not divide the {train.size} ranks; "
            f"choose a divisor of {train.size}"
        )
    if grouping == "contiguous":
        return _contiguous(train, rollout_tp)
    train_tp = train.axis_size("tp")
    if not zero_redundancy_applies(train_tp, rollout_tp):
        raise LayoutError(
            f"zero-redundancy grouping needs the training tensor_parallel ({train_tp}) to be a "
            f"multiple of the rollout tensor_parallel ({rollout_tp}); "
            "choose grouping: contiguous, or sizes that divide"
        )
    interval = train_tp // rollout_tp
    others = [axis for axis in train.axes if axis != "tp"]
    tp_groups = []
    micro_groups = []
    for tp_group in train.groups("tp"):
        tp_groups += [tp_group[k::interval] for k in range(interval)]
    for model_group in train.groups("tp", *(a for a in others if a != "dp")):
        coordinates = [(train.coordinates(r)["tp"] // interval, r) for r in model_group]
        micro_groups += [
            tuple(r for shard, r in coordinates if shard == index) for index in range(rollout_tp)
        ]
    return GenerationGroups(tuple(tp_groups), tuple(micro_groups))


def _contiguous(train: RankGrid, rollout_tp: int) -> GenerationGroups:
    ranks = range(train.first_rank, train.first_rank + train.size)
    tp_groups = tuple(tuple(ranks[i : i + rollout_tp]) for i in range(0, train.size, rollout_tp))
    shard_of = {rank: i for group in tp_groups for i, rank in enumerate(group)}
    non_dp = [axis for axis in train.axes if axis != "dp"]
    micro = [
        tuple(r for r in group if shard_of[r] == index)
        for group in train.groups(*non_dp)
        for index in range(rollout_tp)
    ]
    return GenerationGroups(tp_groups, tuple(group for group in micro if group))
