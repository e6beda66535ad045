"""Building engines in tests the way the trainer does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.engines.megatron.parallel import start_model_parallel
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader


def build_engine(
    here,
    directory: Path,
    layout: TrainLayout,
    *,
    sequence_parallel: bool = False,
    lr: float | None = 1e-3,
    max_tokens: int = 128,
    role: str = "actor",
    dtype: str = "float32",
    clip_grad: float = 0.0,
    **parallel: Any,
) -> MegatronEngine:
    """A Megatron engine with the weights of a Hugging Face directory; `parallel` are settings of
    ParallelConfig that are no sizes."""
    start_model_parallel(layout, seed=1)
    engine = MegatronEngine(
        read_architecture(directory),
        layout,
        ModelConfig(path=str(directory), dtype=dtype),
        ParallelConfig(
            tensor_parallel=layout.tp,
            pipeline_parallel=layout.pp,
            virtual_pipeline=layout.vpp,
            sequence_parallel=sequence_parallel,
            **parallel,
        ),
        role=role,
        optimizer=OptimizerConfig(lr=lr, clip_grad=clip_grad) if lr else None,
        max_tokens=max_tokens,
    )
    load_weights(here, engine, directory)
    return engine


def load_weights(here, engine: MegatronEngine, directory: Path) -> None:
    source = safetensors_shard_map(directory)
    wanted = engine.shard_map
    if engine.role == "critic":
        wanted = wanted.restricted_to(n for n in wanted.tensors if n != "value_head.weight")
    plan = plan_transfer(source, wanted, here.world.node_of)
    transfer = Transfer(plan, here.world.rank, SafetensorsReader())
    transfer.run({}, engine.weights, engine.dtype)
    engine.weights_changed()


def held(weights, region) -> torch.Tensor:
    """A copy of what a region's memory holds, in the shape of its box."""
    local = weights[region.view.name].clone()  # its own storage, so that offsets count from 0
    return local.as_strided(region.box.shape, region.view.strides, region.view.offset)


def some_sequences(count: int, vocab_size: int, seed: int = 0) -> list[torch.Tensor]:
    """Token sequences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 40, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (n,), generator=generator) for n in lengths]
