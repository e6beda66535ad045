"""Build training engines from the configuration; their libraries are imported on first use.

Process groups, schedules of learning rates and random numbers are Megatron-core's for both engines.
Neither engine imports the other; `engines.shared` has what both use.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from verl_hpc.config.fsdp import FsdpConfig
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.protocol import Head, TrainingEngine
from verl_hpc.engines.shared.invariant import Attend
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.runtime.groups import Groups


def import_engine() -> None:
    """Import the engines' libraries ahead of time."""
    import verl_hpc.engines.megatron.engine  # noqa: F401


def start_layouts(groups: Groups, layouts: Sequence[TrainLayout], seed: int) -> None:
    """Make the process groups of all layouts; every rank of the world calls it, before any engine.

    Layouts that were started earlier are replaced: engines on them still work, as long as their
    groups do.

    Args:
        groups: where the groups are made; the caller closes it.
        layouts: of all engines of the run; they may share ranks or not.
        seed: of the process's random-number generators, which all layouts share.
    """
    from verl_hpc.engines.megatron import parallel

    parallel.start_layouts(groups, layouts, seed)


def stop_layouts() -> None:
    """Forget all layouts; their groups are freed by `Groups.close`."""
    from verl_hpc.engines.megatron import parallel

    parallel.stop_layouts()


def build_engine(
    arch: Architecture,
    layout: TrainLayout,
    model: ModelConfig,
    parallel: ParallelConfig,
    *,
    head: Head,
    optimizer: OptimizerConfig | None,
    max_tokens: int,
    name: str,
    lora: LoraConfig | None = None,
    base: TrainingEngine | None = None,
    attend: Attend | None = None,
) -> TrainingEngine:
    """Build an engine with zero weights; exactly the ranks of `layout` call this, together.

    model.fp8.recipe: delayed works where all layouts of the run have the same ranks, or none in
    common. Transformer Engine reduces the scales of all engines of a process at once, so between
    layouts that share some ranks only, it would wait for ranks that are not there; the planner
    refuses that.

    Args:
        arch: the model's sizes.
        layout: one of those given to `start_layouts`.
        model: element type and FP8; its path is not read.
        parallel: which engine, sequence parallelism and recomputation; its sizes are not read.
        head: the output layer.
        optimizer: None for a model that is not trained.
        max_tokens: limit of a micro-batch.
        name: what error messages call the model, such as critic.
        lora: adapters to train in place of the weights; with an optimizer alone.
        base: an engine of the same model, element type and layout, with adapters. Weights frozen in
            both engines are held once, by `base`; do not fill them again.
        attend: the rollout's kernel of attention, for log-probs with the rollout's bits.

    Raises:
        ClusterError: FP8 that this rank cannot do.
        LayoutError, ModelError: sizes or a family that cannot be built.
    """
    from verl_hpc.engines.megatron.parallel import started

    groups = started(layout)
    role: dict[str, Any] = {"head": head, "optimizer": optimizer, "name": name}
    if parallel.engine == "fsdp":
        from verl_hpc.engines.fsdp.engine import FsdpEngine
        from verl_hpc.engines.megatron.optimizer import schedule

        assert base is None and model.fp8 is None and attend is None, (
            "the configuration refuses that"
        )
        role |= {"max_tokens": max_tokens, "schedule": schedule, "lora": lora}
        return FsdpEngine(arch, groups, model, parallel, **role)
    assert parallel.engine == "megatron", parallel.engine
    from verl_hpc.engines.megatron.engine import MegatronEngine

    assert base is None or isinstance(base, MegatronEngine), base
    role |= {"max_tokens": max_tokens, "lora": lora, "base": base, "attend": attend}
    return MegatronEngine(arch, groups, model, parallel, **role)


def engine_shard_map(
    arch: Architecture,
    layout: TrainLayout,
    model: ModelConfig,
    head: Head,
    *,
    engine: str = "megatron",
    trainable: bool = True,
    lora: LoraConfig | None = None,
) -> ShardMap:
    """The shard map of the engine that `build_engine` builds; any rank may call it.

    Args:
        arch: the model's sizes.
        layout: its ranks.
        model: element type and FP8.
        head: the output layer.
        engine: `parallel.engine`.
        trainable: whether it has an optimizer.
        lora: its adapters, which are not in the map.

    Raises:
        ClusterError: FP8 that this rank cannot do.
        LayoutError: a size does not divide, or is not that engine's.
    """
    if engine == "fsdp":
        from verl_hpc.engines.fsdp.engine import engine_shard_map as sharded

        return sharded(arch, layout, model, head, trainable, lora)
    assert engine == "megatron", engine
    from verl_hpc.engines.megatron.build import engine_shard_map as shard_map

    return shard_map(arch, layout, model, head)


def merged_weights(engine: TrainingEngine, sent: ShardMap) -> Mapping[str, torch.Tensor]:
    """Return the weights of an engine of fully_shard, with adapters merged into those of `sent`;
    every rank of its layout calls it (`engines.fsdp.lora.Adapters.merged`)."""
    from verl_hpc.engines.fsdp.engine import FsdpEngine

    assert isinstance(engine, FsdpEngine), engine
    return engine.merged(sent)


def describe_kernels(
    model: ModelConfig, parallel: ParallelConfig, arch: Architecture | None = None
) -> dict[str, str]:
    """Name the kernels of layers and attention in training, and why fused ones are not used.

    Args:
        model: element type and FP8.
        parallel: which engine.
        arch: the model, if it is known.

    Raises:
        ClusterError: FP8 that this rank cannot do.
    """
    if parallel.engine == "fsdp":
        from verl_hpc.engines.fsdp.kernels import choose_kernels

        by_name = arch is not None and not arch.is_mapped
        return choose_kernels(model, parallel.fsdp or FsdpConfig(), by_name).describe()
    assert parallel.engine == "megatron", parallel.engine
    from verl_hpc.engines.megatron import precision

    return precision.describe_kernels(model, arch)
