"""The plan by which a run's weights go from the role that generates to the rollout engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal, NamedTuple

from verl_hpc.config import rollout as rollouts
from verl_hpc.config.model import Engine
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.fsdp import fsdp_shard_map, kept_dtype
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import DEFAULT_BUCKET_BYTES, HOST_BUCKET_BYTES, Plan, plan_transfer
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.placement.layouts import RunLayouts


def refit_plan(
    config: RunConfig, arch: Architecture, layouts: RunLayouts, hardware: Hardware
) -> Plan:
    """Plan the transfer as `trainer.sync.WeightSync` does.

    Args:
        config: of a run that generates.
        arch: of the role that generates.
        layouts: of the run.
        hardware: of its nodes.
    """
    rollout = config.rollout
    first = next(iter(layouts.train))
    return _planned(
        replace(arch, rope_scaling=None),  # it cannot be hashed
        layouts.train[first],
        config.role_settings[first].parallel.engine,
        trained_dtype(config.role_settings[first]),
        _Engines(
            rollout.engine,
            rollout.pipeline_parallel,
            rollout.expert_parallel,
            config.rollout_dtype,
            rollout.quantization,
            tuple(rollout.ignored_layers),
        ),
        layouts.replicas,
        nodes_of(layouts.num_ranks, hardware.ranks_per_node),
        DEFAULT_BUCKET_BYTES if hardware.kind.is_gpu else HOST_BUCKET_BYTES,
    )


def trained_dtype(role: RoleSettings) -> str:
    """Element type of what the ranks of a role keep."""
    return kept_dtype(role.model.dtype, role.trainable and role.parallel.engine == "fsdp")


class _Engines(NamedTuple):
    """Settings that decide how engines lay out their weights; hashable."""

    engine: rollouts.Engine
    num_stages: int
    expert_parallel: bool
    dtype: str
    quantization: Literal["fp8"] | None
    ignored_layers: tuple[str, ...]


@lru_cache(maxsize=16)
def _planned(
    arch: Architecture,
    train: TrainLayout,
    trainer: Engine,
    dtype: str,
    rollout: _Engines,
    replicas: Sequence[tuple[int, ...]],
    nodes: Sequence[int],
    bucket_bytes: int,
) -> Plan:
    engines = RolloutConfig(
        engine=rollout.engine,
        tensor_parallel=len(replicas[0]) // rollout.num_stages,
        pipeline_parallel=rollout.num_stages,
        expert_parallel=rollout.expert_parallel,
        quantization=rollout.quantization,
        ignored_layers=list(rollout.ignored_layers),
    )
    assert trainer in ("megatron", "fsdp"), trainer
    shard_map = fsdp_shard_map if trainer == "fsdp" else megatron_shard_map
    source = shard_map(arch, train, dtype=dtype)
    target = rollout_shard_map(engines, arch, replicas, rollout.dtype)
    return plan_transfer(quantised_source(source, target), target, nodes, bucket_bytes)
