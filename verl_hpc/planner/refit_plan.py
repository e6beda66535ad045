"""The plan by which a run's weights go from the role that generates to the rollout engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

from verl_hpc.config.model import Engine
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.adapters import AdapterShape, adapter_shard_map, factor_map
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import fsdp_shard_map, kept_dtype
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import Plan, plan_transfer
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.placement.layouts import RunLayouts


def refit_plans(
    config: RunConfig, arch: Architecture, layouts: RunLayouts, hardware: Hardware
) -> tuple[Plan, ...]:
    """Plan the transfers of `trainer.sync.WeightSync` on GPUs: all weights, and the adapters if
    there are some that travel alone. The last one is that of every step; with such adapters the
    other one is made once.

    Args:
        config: of a run that generates.
        arch: of the role that generates.
        layouts: of the run.
        hardware: of its nodes.
    """
    first = next(iter(layouts.train))
    role = config.role_settings[first]
    is_sharded = role.parallel.engine == "fsdp"
    return _planned(
        replace(arch, rope_scaling=None),  # it cannot be hashed
        layouts.train[first],
        role.parallel.engine,
        kept_dtype(role.model.dtype, role.trainable and is_sharded and role.lora is None),
        config.rollout.model_dump_json(),  # nor can a section
        config.rollout_dtype,
        layouts.replicas,
        nodes_of(layouts.num_ranks, hardware.ranks_per_node),
        AdapterShape.of(role.lora) if role.lora is not None and not is_sharded else None,
    )


@lru_cache(maxsize=16)
def _planned(
    arch: Architecture,
    train: TrainLayout,
    trainer: Engine,
    dtype: str,
    rollout: str,
    rollout_dtype: str,
    replicas: Sequence[tuple[int, ...]],
    nodes: Sequence[int],
    adapters: AdapterShape | None,
) -> tuple[Plan, ...]:
    assert trainer in ("megatron", "fsdp"), trainer
    shard_map = fsdp_shard_map if trainer == "fsdp" else megatron_shard_map
    source = shard_map(arch, train, dtype=dtype)
    engines = RolloutConfig.model_validate_json(rollout)
    target = rollout_shard_map(engines, arch, replicas, rollout_dtype)
    ways = [(quantised_source(source, target), target)]
    if adapters is not None:
        trained = adapter_shard_map(arch, source, adapters)
        ways.append((trained, factor_map(target, trained)))
    return tuple(plan_transfer(*way, nodes) for way in ways)
