"""Building engines in tests the way the trainer does."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

import pytest
import torch

from tests.slow import REASON
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.config.lora import LoraConfig
from verl_hpc.config.model import ModelConfig, OptimizerConfig, ParallelConfig, RouterConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.engines import factory
from verl_hpc.engines.factory import start_layouts
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.engines.protocol import Head, TrainingEngine
from verl_hpc.engines.shared.invariant import Attend
from verl_hpc.hf.model import resolved
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.factory import build_rollout
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
    moments: Literal["float32", "bfloat16"] = "float32",
    lora: LoraConfig | None = None,
    router: RouterConfig | None = None,
    vision_tower: Literal["trained", "frozen"] = "trained",
    attend: Attend | None = None,
    **parallel: Any,
) -> MegatronEngine:
    """A Megatron engine with the weights of a Hugging Face directory; `parallel` are settings of
    ParallelConfig that are no sizes."""
    start_layouts(here.groups, [layout], seed=1)
    engine = factory.build_engine(
        resolved(
            read_architecture(directory, parallel.get("engine", "megatron")),
            head,
            vision_tower == "frozen",
        ),
        layout,
        ModelConfig(path=str(directory), dtype=dtype, router=router, vision_tower=vision_tower),
        ParallelConfig(**layout.sizes_of_model, sequence_parallel=sequence_parallel, **parallel),
        head=head,
        optimizer=(
            OptimizerConfig(
                lr=lr,
                clip_grad=clip_grad,
                weight_decay=weight_decay,
                epsilon=epsilon,
                moments=moments,
            )
            if lr
            else None
        ),
        max_tokens=max_tokens,
        name="model",
        lora=lora,
        attend=attend,
    )
    load_weights(here, engine, directory)
    return cast(MegatronEngine, engine)


def engine_of_sizes(here, directory: Path, sizes: Mapping[str, Any], **settings: Any):
    """An engine on these sizes, which may also say `sp` for sequence parallelism, what is
    recomputed, and `fsdp` for the engine of that name."""
    sizes = dict(sizes)
    if sizes.pop("fsdp", False):
        settings["engine"] = "fsdp"
    settings["sequence_parallel"] = bool(sizes.pop("sp", False))
    if "recompute" in sizes:
        settings["recompute"] = sizes.pop("recompute")
    return build_engine(here, directory, TrainLayout(**sizes), **settings)


def load_weights(here, engine: TrainingEngine, directory: Path) -> None:
    """From a Hugging Face directory; a value head that is not there stays zero."""
    weights = open_weights(directory, head=engine.head)
    there = [name for name in weights.tensors if name in engine.shard_map.tensors]
    wanted = engine.shard_map.restricted_to(there)
    plan = plan_transfer(weights.shard_map, wanted, here.world.node_of)
    dtypes = {name: getattr(torch, spec.dtype) for name, spec in wanted.tensors.items()}
    Transfer(plan, here.world.rank, weights.reader).run({}, engine.weights, dtypes)
    engine.weights_changed()


def rollout_of(
    here,
    directory: Path,
    replicas,
    config: RolloutConfig,
    dtype: str = "float32",
    engine: str = "megatron",
    **settings: Any,
) -> RolloutEngine | None:
    """The rollout engine of a configuration, without weights; None on ranks of no replica.

    Args:
        engine: the training engine that would send it weights.
    """
    arch, path = resolved(read_architecture(directory, engine)), str(directory)
    return build_rollout(here.world, arch, path, path, replicas, config, dtype, **settings)


def loaded_rollout(
    here, directory: Path, replicas, config: RolloutConfig, dtype: str = "float32", **settings: Any
) -> RolloutEngine | None:
    """`rollout_of` with the directory's weights, whose parameters are those of its map."""
    rank, engine = here.world.rank, rollout_of(here, directory, replicas, config, dtype, **settings)
    target = rollout_shard_map(config, read_architecture(directory), replicas, dtype)
    plan = plan_transfer(safetensors_shard_map(directory), target, here.world.node_of)
    transfer = Transfer(plan, rank, SafetensorsReader())
    if engine is None:
        transfer.run({}, {}, torch.float32)
        return None
    assert engine.shard_map == target
    check_parameters(target, rank, engine.weights, config.engine)
    refit(engine, transfer, {})
    return engine


def load_rollout(here, engine: RolloutEngine, directory: Path) -> None:
    """Fill a rollout engine with the weights of a Hugging Face directory."""
    plan = plan_transfer(safetensors_shard_map(directory), engine.shard_map, here.world.node_of)
    refit(engine, Transfer(plan, here.world.rank, SafetensorsReader()), {})


def refit(engine: RolloutEngine, transfer: Transfer, source: Mapping, dtypes: Any = None):
    """Give a rollout engine the weights of `source`; what the transfer counted."""
    engine.begin_update()
    stats = transfer.run(source, engine.weights, dtypes or engine.dtype)
    engine.finish_update()
    return stats


def layouts(labels: str) -> list[dict[str, Any]]:
    """Sizes of layouts by their labels: `tp2-pp2 dp4-ep2-full` are two.

    `sp` stands for sequence parallelism, `full` and `selective` for what is recomputed, `one` for
    a rank alone; any other word is set to the number behind it, or to True without one.
    """
    return [_sizes(label) for label in labels.split()]


def _sizes(label: str) -> dict[str, Any]:
    sizes: dict[str, Any] = {}
    for name, number in re.findall(r"([a-z]+)(\d*)", label.removeprefix("one")):
        if name in ("full", "selective"):
            sizes["recompute"] = name
        else:
            sizes[name] = int(number) if number else True
    return sizes


def layouts_of_world(
    metafunc,
    usual: Mapping[int, Sequence[Mapping[str, int]]],
    further: Mapping[int, Sequence[Mapping[str, int]]] = MappingProxyType({}),
    **choices: Sequence,
) -> None:
    """Give a test's `sizes` each layout of this world size: a `pytest_generate_tests`.

    Args:
        further: layouts that are all slow, since those of `usual` have all that is in them.
        choices: what other arguments may be. A layout takes one combination of them, the next
            layout the next one; all combinations on all layouts are slow.
    """
    from tests.mpi import plugin

    if "sizes" not in metafunc.fixturenames:
        return
    taken = {name: values for name, values in choices.items() if name in metafunc.fixturenames}
    combinations = list(product(*taken.values()))
    cases = []
    often, seldom = (known.get(plugin.session.world.size, []) for known in (usual, further))
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


def window(memory: Mapping[str, torch.Tensor], region) -> torch.Tensor:
    """The elements of a region where they lie in memory, in the shape of its box."""
    local, view = memory[region.view.name], region.view
    first = local.storage_offset() + view.offset
    return local.as_strided(region.box.shape, view.strides, first)


def held(weights, region) -> torch.Tensor:
    """A copy of what a region's memory holds, in the shape of its box."""
    return window(weights, region).clone()


def same(found: Mapping, expected: Mapping, atol: float = 0.0) -> None:
    """Assert that both have the same tensors by name, to the last bit unless `atol` says else."""
    torch.testing.assert_close(dict(found), dict(expected), rtol=0, atol=atol)


def memory(
    shard_map: ShardMap, rank: int, values: Mapping[str, torch.Tensor] | None = None
) -> dict[str, torch.Tensor]:
    """One rank's tensors as an engine has them: with the regions of whole tensors, or with NaN."""
    sizes: dict[str, int] = {}
    regions = shard_map.held_by(rank)
    for r in regions:
        last = sum((n - 1) * s for n, s in zip(r.box.shape, r.view.strides, strict=True))
        sizes[r.view.name] = max(sizes.get(r.view.name, 0), r.view.offset + last + 1)
    kinds = {r.view.name: getattr(torch, shard_map.tensors[r.tensor].dtype) for r in regions}
    tensors = {n: torch.full((size,), float("nan")).to(kinds[n]) for n, size in sizes.items()}
    for r in regions if values is not None else ():
        window(tensors, r).copy_(values[r.tensor][r.box.slices])
    return tensors


def gathered(
    here, shard_map: ShardMap, memory: Mapping[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    """All logical tensors of a map of which each rank holds regions, gathered the slow way."""
    mine = {(r.tensor, r.box): held(memory, r) for r in shard_map.held_by(here.world.rank)}
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
