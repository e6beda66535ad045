"""How training ranks regroup for generation.

Source: HybridFlow (arXiv 2409.19256), section 5.3. There `p-t-d` are the training sizes and
`p_g-t_g-d_g-d` the generation sizes, with `p*t = p_g*t_g*d_g`.
"""

from __future__ import annotations

from typing import Literal

from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import RankGrid, check_divides

Grouping = Literal["zero_redundancy", "contiguous"]


def zero_redundancy_applies(train_tp: int, rollout_tp: int) -> bool:
    """Whether a rank can keep its training shard inside its generation shard."""
    return train_tp % rollout_tp == 0


def contiguous_groups(
    first: int, last: int, rollout_tp: int, rollout_pp: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Cut ranks `first` to `last`, which need not train, into engines of neighbours: 4 to 7 by 2
    gives [4 5] [6 7]. With `rollout_pp` stages an engine has the ranks of its first stage, then
    those of the next.

    Raises:
        LayoutError: the number of ranks does not divide.
    """
    ranks, size = range(first, last + 1), rollout_tp * rollout_pp
    assert ranks, (first, last)
    if len(ranks) % size:
        stages = f" x pipeline_parallel {rollout_pp} = {size}"
        raise LayoutError(
            f"rollout tensor_parallel = {rollout_tp}{stages if rollout_pp > 1 else ''} does not "
            f"divide the {len(ranks)} ranks {first}-{last} that generate; choose a divisor of "
            f"{len(ranks)}, or another number of ranks"
        )
    return tuple(tuple(ranks[i : i + size]) for i in range(0, len(ranks), size))


def cache_bytes_per_token(arch: Architecture, tp: int, pp: int, item_bytes: int) -> int:
    """Keys and values of a token on one rank of an engine; with more ranks than key/value heads a
    head is on several. Of multi-latent attention each rank has the whole latent vector."""
    if arch.latent is not None:
        return layers_per_rollout_stage(arch.num_layers, pp) * arch.kv_down_size * item_bytes
    heads = max(arch.num_kv_heads // tp, 1)
    return 2 * layers_per_rollout_stage(arch.num_layers, pp) * heads * arch.head_size * item_bytes


def layers_per_rollout_stage(num_layers: int, rollout_pp: int) -> int:
    """Decoder layers of every pipeline stage of an engine.

    Raises:
        LayoutError: they do not divide. Each rank of an engine sizes its own cache by its layers,
            and all must come to the same size.
    """
    check_divides("rollout pipeline_parallel", rollout_pp, num_layers, "layers")
    return num_layers // rollout_pp


def generation_groups(
    train: RankGrid, rollout_tp: int, grouping: Grouping = "zero_redundancy", rollout_pp: int = 1
) -> tuple[tuple[int, ...], ...]:
    """Cut the ranks of a training grid (axes tp, dp, pp) into generation engines; each in
    tensor-parallel order, stage after stage if it has more than one.

    Zero redundancy picks the ranks of a tensor-parallel group at intervals of `t / t_g`, so that
    every rank's training shard lies inside its generation shard. Training 1-4-2 (p-t-d) to
    generation 1-2-2-2 on 8 ranks::

        training tp groups    [0 1 2 3] [4 5 6 7]
        generation tp groups  [0 2] [1 3]     [4 6] [5 7]

    `contiguous` takes neighbours ([0 1] [2 3] [4 5] [6 7]): what an engine does by itself, and the
    only grouping where `t` is not a multiple of `t_g`.

    Raises:
        LayoutError: the sizes do not divide.
    """
    neighbours = contiguous_groups(
        train.first_rank, train.first_rank + train.size - 1, rollout_tp, rollout_pp
    )
    if grouping == "contiguous":
        return neighbours
    assert rollout_pp == 1, "zero redundancy is for engines of one stage"
    train_tp = train.axis_size("tp")
    if not zero_redundancy_applies(train_tp, rollout_tp):
        raise LayoutError(
            f"zero-redundancy grouping needs the training tensor_parallel ({train_tp}) to be a "
            f"multiple of the rollout tensor_parallel ({rollout_tp}); "
            "choose grouping: contiguous, or sizes that divide"
        )
    interval = train_tp // rollout_tp
    return tuple(group[k::interval] for group in train.groups("tp") for k in range(interval))
