"""What every rank launches to carry out a plan, and plans of random layouts."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from tests.unit.layout.models import PUBLISHED
from tests.unit.transfer.blocking import Launch, Program
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import Architecture, architecture_from
from verl_hpc.layout.fsdp import fsdp_shard_map
from verl_hpc.layout.generation import generation_groups
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.moves import RankMoves, Step, moves_of
from verl_hpc.layout.planner import Plan, plan_transfer
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.layout.shard_map import ShardMap

_SUM_BYTES = 8
"""Bytes that tell a message's checksum."""


def programs(plan: Plan, ranks: Iterable[int]) -> dict[int, Program]:
    """Each rank's launches, found from its own moves: a round each, and then the checksums."""
    return {rank: _program(moves_of(plan, rank)) for rank in ranks}


def _program(moves: RankMoves) -> Program:
    steps = [step for hop in moves.hops for step in hop]
    launches = [Launch(_sends(step), _receives(step)) for step in steps]
    sums = Launch(
        _sums(to for launch in launches for to, _ in launch.sends),
        _sums(frm for launch in launches for frm, _ in launch.receives),
    )
    return [*launches, sums] if steps else []


def _sends(step: Step) -> Sequence[tuple[int, int]]:
    return [(step.to, sum(s.fragment.num_bytes for s in step.sends))] if step.sends else []


def _receives(step: Step) -> Sequence[tuple[int, int]]:
    return [(step.frm, sum(r.fragment.num_bytes for r in step.receives))] if step.receives else []


def _sums(peers: Iterable[int]) -> Sequence[tuple[int, int]]:
    counts: dict[int, int] = defaultdict(int)
    for peer in peers:
        counts[peer] += 1
    return [(peer, n * _SUM_BYTES) for peer, n in counts.items()]


@cache
def _models() -> Sequence[Architecture]:
    few = [architecture_from(PUBLISHED[name][0]) for name in ("Qwen3-8B", "Llama-3.1-70B")]
    experts = replace(architecture_from(PUBLISHED["Qwen3-30B-A3B"][0]), num_experts=16)
    return [*few, experts]


def random_refit(number: int, most_ranks: int) -> tuple[str, Plan, int]:
    """A plan between random layouts of models of real sizes with few layers.

    Returns:
        Its layouts in words, the plan, and the number of ranks.
    """
    dice = random.Random(number)
    while True:
        drawn = _drawn(dice, most_ranks)
        try:
            words, source, target, num_ranks, per_node = _maps(*drawn, dice)
        except LayoutError:
            continue  # sizes that do not divide the model
        source = quantised_source(source, target)
        return words, plan_transfer(source, target, nodes_of(num_ranks, per_node)), num_ranks


def _drawn(
    dice: random.Random, most_ranks: int
) -> tuple[Architecture, TrainLayout, bool, RolloutConfig]:
    """A model, how it is trained, whether by fully_shard, and how it generates."""
    arch = dice.choice(_models())
    sharded = not arch.is_moe and dice.random() < 0.2
    tp, pp = (1, 1) if sharded else (dice.choice([1, 2, 4, 8]), dice.choice([1, 1, 2, 4, 8]))
    while tp * pp > most_ranks:
        tp, pp = max(tp // 2, 1), max(pp // 2, 1)
    most = most_ranks // (tp * pp)
    dp = dice.choice([n for n in (1, 2, 3, 4, 6, 8, 16, 32, 64, 128, 256) if n <= most])
    ep = dice.choice([n for n in (1, 2, 4, 8) if tp * dp % n == 0]) if arch.is_moe else 1
    layout = TrainLayout(
        tp=tp,
        pp=pp,
        dp=dp,
        vpp=dice.choice([1, 2]) if pp > 1 else 1,
        ep=ep,
        etp=dice.choice([1, tp]) if ep > 1 else tp if arch.is_moe else 1,
        shard_size=dice.choice([n for n in (1, 2, 8) if dp % n == 0]) if sharded else None,
    )
    arch = replace(arch, num_layers=layout.pp * layout.vpp * dice.choice([1, 2]))
    rollout_tp = dice.choice([1, 1, 2, 4, 8])
    rollout = RolloutConfig(
        tensor_parallel=rollout_tp,
        pipeline_parallel=dice.choice([1, 1, 1, 2]),
        expert_parallel=arch.is_moe and rollout_tp > 1 and dice.random() < 0.5,
        quantization=dice.choice([None, None, "fp8"]),
    )
    return arch, layout, sharded, rollout


def _maps(
    arch: Architecture,
    layout: TrainLayout,
    sharded: bool,
    rollout: RolloutConfig,
    dice: random.Random,
) -> tuple[str, ShardMap, ShardMap, int, int]:
    """The layouts in words, both shard maps, the number of ranks, and those of a node."""
    size = layout.num_ranks
    # Generate on all ranks that train, on half of them and as many others, or on others alone.
    first = dice.choice([0, 0, 0, size // 2, size])
    tp, pp = rollout.tensor_parallel, rollout.pipeline_parallel
    grid = TrainLayout(dp=size, first_rank=first).grid if first else layout.grid
    spread = not first and pp == 1 and layout.tp % tp == 0 and dice.random() < 0.5
    replicas = generation_groups(grid, tp, "zero_redundancy" if spread else "contiguous", pp)
    source = (
        fsdp_shard_map(arch, layout, dtype="float32")
        if sharded
        else megatron_shard_map(arch, layout, backend="transformer_engine", dtype="bfloat16")
    )
    target = rollout_shard_map(rollout, arch, replicas, "bfloat16")
    per_node = dice.choice([2, 4, 8])
    words = f"{arch.family} {layout} -> {rollout.model_dump(exclude_defaults=True)} from {first}"
    return words, source, target, first + size, per_node
