"""The plan by which a run's weights go from the role that generates to the rollout engines."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Literal

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import DEFAULT_BUCKET_BYTES, HOST_BUCKET_BYTES, Plan, plan_transfer
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.planner.hardware import Hardware
from verl_hpc.planner.layouts import RunLayouts


def refit_plan(
    config: RunConfig, arch: Architecture, layouts: RunLayouts, hardware: Hardware
) -> Plan:
    """As `trainer.sync.WeightSync` makes it.

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
        config.role_settings[first].model.dtype,
        (rollout.engine, rollout.pipeline_parallel, rollout.expert_parallel, config.rollout_dtype),
        layouts.replicas,
        nodes_of(layouts.num_ranks, hardware.ranks_per_node),
        DEFAULT_BUCKET_BYTES if hardware.kind.is_gpu else HOST_BUCKET_BYTES,
    )


@lru_cache(maxsize=16)
def _planned(
    arch: Architecture,
    train: TrainLayout,
    dtype: str,
    rollout: tuple[Literal["vllm", "hf", "none"], int, bool, str],
    replicas: Sequence[tuple[int, ...]],
    nodes: Sequence[int],
    bucket_bytes: int,
) -> Plan:
    engine, num_stages, expert_parallel, rollout_dtype = rollout
    engines = RolloutConfig(
        engine=engine,
        tensor_parallel=len(replicas[0]) // num_stages,
        pipeline_parallel=num_stages,
        expert_parallel=expert_parallel,
    )
    source = megatron_shard_map(arch, train, dtype=dtype)
    target = rollout_shard_map(engines, arch, replicas, rollout_dtype)
    return plan_transfer(source, target, nodes, bucket_bytes)
