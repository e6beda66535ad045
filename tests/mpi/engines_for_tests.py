"""Building engines in tests the way the trainer does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, cast

import pytest
import torch

from tests.slow import REASON
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig, RouterConfig
from verl_hpc.engines import factory
from verl_hpc.engines.factory import start_layouts
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.engines.protocol import Head, TrainingEngine
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.protocol import RolloutEngine
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
    head: Head = "language_model",
    dtype: str = "float32",
    clip_grad: float = 0.0,
    weight_decay: float = 0.0,
    epsilon: float = 1e-8,
    lora: LoraConfig | None = None,
    router: RouterConfig | None = None,
    **parallel: Any,
) -> MegatronEngine:
    """A Megatron engine with the weights of a Hugging Face directory; `parallel` are settings of
    ParallelConfig that are no sizes."""
    start_layouts(here.groups, [layout], seed=1)
    engine = factory.build_engine(
        read_architecture(directory),
        layout,
        ModelConfig(path=str(directory), dtype=dtype, router=router),
        ParallelConfig(
            tensor_parallel=layout.tp,
            pipeline_parallel=layout.pp,
            virtual_pipeline=layout.vpp,
            context_parallel=layout.cp,
            expert_parallel=layout.ep,
            expert_tensor_parallel=layout.etp,
            sequence_parallel=sequence_parallel,
            **parallel,
        ),
        head=head,
        optimizer=(
            OptimizerConfig(lr=lr, clip_grad=clip_grad, weight_decay=weight_decay, epsilon=epsilon)
            if lr
            else None
        ),
        max_tokens=max_tokens,
        name="model",
        lora=lora,
    )
    load_weights(here, engine, directory)
    return cast(MegatronEngine, engine)


def load_weights(here, engine: TrainingEngine, directory: Path) -> None:
    """From a Hugging Face directory; a value head that is not there stays zero."""
    weights = open_weights(directory, head=engine.head)
    wanted = engine.shard_map.restricted_to(weights.tensors)
    plan = plan_transfer(weights.shard_map, wanted, here.world.node_of)
    Transfer(plan, here.world.rank, weights.reader).run({}, engine.weights, engine.dtype)
    engine.weights_changed()


def load_rollout(here, engine: RolloutEngine, directory: Path) -> None:
    """Fill a rollout engine with the weights of a Hugging Face directory."""
    plan = plan_transfer(safetensors_shard_map(directory), engine.shard_map, here.world.node_of)
    engine.begin_update()
    Transfer(plan, here.world.rank, SafetensorsReader()).run({}, engine.weights, engine.dtype)
    engine.finish_update()


def layouts_of_world(
    metafunc,
    layouts: Mapping[int, Sequence[Mapping[str, int]]],
    further: Mapping[int, Sequence[Mapping[str, int]]] = MappingProxyType({}),
    **choices: Sequence,
) -> None:
    """Give a test's `sizes` each layout of this world size: a `pytest_generate_tests`.

    Args:
        further: layouts that are all slow, since those of `layouts` have all that is in them.
        choices: what other arguments may be. A layout takes one combination of them, the next
            layout the next one; all combinations on all layouts are slow.
    """
    from tests.mpi import plugin

    if "sizes" not in metafunc.fixturenames:
        return
    taken = {name: values for name, values in choices.items() if name in metafunc.fixturenames}
    combinations = list(product(*taken.values()))
    cases = []
    often, seldom = (found.get(plugin.session.world.size, []) for found in (layouts, further))
    for number, sizes in enumerate([*often, *seldom]):
        layout = "-".join(f"{k}{v}" for k, v in sizes.items())
        for place, values in enumerate(combinations):
            in_turn = place == (number + plugin.session.world.size) % len(combinations)
            in_turn = in_turn and number < len(often)
            name = "-".join([layout, *map(_label, values)])
            marks = [] if in_turn else [pytest.mark.slow(reason=REASON)]
            cases.append(pytest.param(sizes, *values, id=name, marks=marks))
    metafunc.parametrize(("sizes", *taken), cases)


def _label(value: object) -> str:
    return value if isinstance(value, str) else re.sub(r"\W+", "-", str(value)).strip("-")


def held(weights, region) -> torch.Tensor:
    """A copy of what a region's memory holds, in the shape of its box."""
    local = weights[region.view.name].clone()  # its own storage, so that offsets count from 0
    return local.as_strided(region.box.shape, region.view.strides, region.view.offset)


def gathered(
    here, shard_map: ShardMap, memory: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """All logical tensors of a map of which each rank holds regions, gathered the slow way."""
    mine = {}
    for region in shard_map.held_by(here.world.rank):
        local = memory[region.view.name]
        window = local.as_strided(
            region.box.shape, region.view.strides, local.storage_offset() + region.view.offset
        )
        mine[region.tensor, region.box] = window.clone()
    whole = {n: torch.full(s.shape, float("nan")) for n, s in shard_map.tensors.items()}
    for part in here.control.allgather(mine):
        for (name, box), value in part.items():
            whole[name][box.slices] = value
    assert not any(t.isnan().any() for t in whole.values())
    return whole


def some_sequences(count: int, vocab_size: int, seed: int = 0) -> list[torch.Tensor]:
    """Token sequences of different lengths."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(3, 40, (count,), generator=generator).tolist()
    return [torch.randint(0, vocab_size, (n,), generator=generator) for n in lengths]


def responses(prompts: int, samples: int, vocab_size: int) -> list[torch.Tensor]:
    """Sequences of which so many neighbours begin alike."""
    beginnings = some_sequences(prompts, vocab_size, seed=1)
    ends = some_sequences(prompts * samples, vocab_size, seed=2)
    return [torch.cat([beginnings[i // samples], end]) for i, end in enumerate(ends)]
