"""One rank of a run on H100s, with the engine that the run would build there."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tests.dry_gpu.device import Gpu
from verl_hpc.config.load import parse_config
from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.engines import factory
from verl_hpc.engines.protocol import TokenOutputs, TrainingEngine
from verl_hpc.hardware.node import KINDS, Hardware
from verl_hpc.layout.architecture import Architecture, architecture_from
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.placement.layouts import RunLayouts, run_layouts
from verl_hpc.planner.memory.ledger import ledger
from verl_hpc.planner.memory.phase import Phase
from verl_hpc.runtime.groups import Groups
from verl_hpc.runtime.world import World

MODELS = Path(__file__).parents[2] / "configs" / "model"
PER_NODE = 8
_RUN = {
    "name": "dry",
    "steps": 1,
    "recipe": "rl",
    "directory": "none",
    "algorithm": {"advantage": {"name": "gae"}},
    "optimizer": {"lr": 1e-6},
    "batch": {"size": 64, "mini_batches": 1, "max_tokens_per_micro_batch": 4096},
    "data": {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 64}},
}
_ROLLOUT = {"max_prompt_tokens": 512, "max_response_tokens": 1024, "max_num_seqs": 256}

SMALL = {
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 512,
}
"""A model that may be in host memory."""
COUNTED: dict[str, tuple[int, int]] = {}
"""Bytes that this process's test has counted, and those of the ledger, by what they are of."""


@dataclass
class OneRank:
    """A rank, its engine of one role, and the run that they are of."""

    gpu: Gpu
    fields: Mapping[str, Any]
    """config.json of the model."""
    arch: Architecture
    run: RunConfig
    layouts: RunLayouts
    role: str
    engine: TrainingEngine

    @property
    def settings(self) -> RoleSettings:
        return self.run.role_settings[self.role]

    @property
    def layout(self) -> TrainLayout:
        return self.layouts.train[self.role]

    @property
    def world(self) -> World:
        return world_of(self.gpu)

    def phases(self, counts_peers: bool = False) -> list[Phase]:
        """The phases of this rank as `plan` counts them."""
        hardware = Hardware(KINDS["H100-80"], PER_NODE)
        counted = ledger(self.run, self.arch, self.layouts, hardware, counts_peers)
        return list(counted.of_rank(self.gpu.rank))

    def planned(self, phase: str, *terms: str) -> int:
        """Bytes of this role's terms in a phase, or of some of them; without the allocator's
        holes, which a count of storages has not."""
        named = next(p for p in self.phases() if p.name == phase and p.of in (self.role, ""))
        own = {
            name.partition(".")[2]: size
            for name, size in named.device.items()
            if name.startswith(f"{self.role}.")
        }
        return (
            sum(own[t] for t in terms if t in own)
            if terms
            else sum(own.values()) - own.get("allocator", 0)
        )


def world_of(gpu: Gpu) -> World:
    nodes = tuple(rank // PER_NODE for rank in range(gpu.size))
    local, node = gpu.rank % PER_NODE, nodes[gpu.rank]
    return World(gpu.rank, gpu.size, local, gpu.per_node, node, nodes, "host", "cuda:0")


def one_rank(
    start: Callable[..., Gpu],
    file: str,
    rank: int,
    size: int,
    parallel: Mapping[str, Any],
    *,
    role: str = "actor",
    layers: int = 2,
    fields: Mapping[str, Any] | None = None,
    max_tokens: int = 4096,
    rollout: Mapping[str, Any] | None = None,
    **changes: Any,
) -> OneRank:
    """Build the engine of a role on one rank of a world.

    Args:
        start: the fixture `gpu`.
        file: sizes of a model, in configs/model.
        rank: this process's.
        size: ranks of the world.
        parallel: section `parallel` of the run.
        role: whose engine is built.
        layers: decoder layers of the model.
        fields: further fields of config.json.
        max_tokens: of a micro-batch.
        rollout: section `rollout` of the run.
        changes: further sections of the run; `model` without its path.
    """
    gpu = start(rank, size, PER_NODE)
    sizes = json.loads((MODELS / f"{file}.json").read_text())
    sizes |= {"num_hidden_layers": layers, **(fields or {})}
    arch = architecture_from(sizes)
    tree = (
        _RUN
        | changes
        | {
            "model": {"path": "none", "dtype": "bfloat16", **changes.get("model", {})},
            "parallel": dict(parallel),
            "rollout": {**_ROLLOUT, **(rollout or {})},
            "batch": {**_RUN["batch"], "max_tokens_per_micro_batch": max_tokens},
        }
    )
    run = parse_config(tree)
    layouts = run_layouts(run, arch, size, ranks_per_node=PER_NODE)
    factory.start_layouts(Groups(), [layouts.train[role]], seed=1)
    settings = run.role_settings[role]
    engine = factory.build_engine(
        arch,
        layouts.train[role],
        settings.model,
        settings.parallel,
        head=settings.head,
        optimizer=settings.optimizer,
        max_tokens=max_tokens,
        name=role,
        lora=settings.lora,
    )
    if settings.lora is None and settings.parallel.engine == "megatron":
        check_parameters(engine.shard_map, rank, engine.weights, "Megatron-core")
    return OneRank(gpu, sizes, arch, run, layouts, role, engine)


def sequences_of(one: OneRank, lengths: Sequence[int]) -> list[torch.Tensor]:
    """Tokens of sequences, on the device; none begins like another."""
    return [
        ((torch.arange(n) + i) % one.arch.vocab_size).to("cuda", non_blocking=True)
        for i, n in enumerate(lengths)
    ]


def loss(indices: Sequence[int], outputs: Sequence[TokenOutputs]) -> tuple[torch.Tensor, dict]:
    """A loss of all outputs, with a metric."""
    sums = [(o.values if o.values is not None else o.log_probs).sum() for o in outputs]
    total = -torch.stack(sums).sum() / 1000
    return total, {"something": total.detach()}


def tell_stages(monkeypatch: Any) -> None:
    """Let the last stage tell this one its metrics, as no other rank is here to do it."""
    monkeypatch.setattr(torch.distributed, "broadcast_object_list", _told_metrics)


def _told_metrics(objects: list[Any], *_: Any, **__: Any) -> None:
    if objects[0] == []:
        objects[:] = [["loss", "something"], [1.0, 1.0]]
