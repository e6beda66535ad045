"""Runs whose scaling is worked out on paper: models of published sizes, and launch/*.sbatch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.launch import REPOSITORY
from verl_hpc.config.load import load_config, parse_config
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware, gpu_kind
from verl_hpc.layout.architecture import Architecture, architecture_from, read_architecture
from verl_hpc.planner.timing.machine import Machine

GPU = "H100-80"
PER_GPU = 4
"""Prompts of a step on each GPU, where the batch grows with the ranks."""

_DENSE = ("Qwen2.5-7B", "Qwen2.5-32B-Instruct", "Llama-3.1-70B-Instruct")
_MOE: Mapping[str, Mapping[str, Any]] = {
    "Mixtral-8x7B": {
        "model_type": "mixtral",
        "num_hidden_layers": 32,
        "hidden_size": 4096,
        "intermediate_size": 14336,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "vocab_size": 32000,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 32768,
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "sliding_window": None,
    },
    "Qwen3-30B-A3B": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 48,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "head_dim": 128,
        "vocab_size": 151936,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "max_position_embeddings": 40960,
        "moe_intermediate_size": 768,
        "num_experts": 128,
        "num_experts_per_tok": 8,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
    },
}
"""The models' own config.json."""

GRPO: Mapping[str, Any] = {
    "name": "on_paper",
    "recipe": "rl",
    "steps": 1,
    "model": {"path": "none"},
    "offload": {"parameters": True, "gradients": True, "optimizer": True},
    "batch": {"size": 1024, "mini_batches": 4, "max_tokens_per_micro_batch": 9216},
    "rollout": {"num_samples": 16, "max_prompt_tokens": 1024, "max_response_tokens": 8192},
    "data": {"train": {"kind": "files", "paths": ["none"]}},
}
"""Settings of the run that the models share."""

LAUNCHED: Mapping[str, tuple[str, int, int]] = {
    "ppo_70b": ("Llama-3.1-70B-Instruct", 16, 8),
    "grpo_8b": ("Qwen3-8B", 2, 8),
    "grpo_32b_fp8": ("Qwen2.5-32B-Instruct", 4, 8),
    "sft_8b": ("Llama-3.1-8B", 2, 4),
}
"""Model, nodes and GPUs a node of launch/NAME.sbatch."""


@dataclass(frozen=True)
class Shape:
    """A run that is worked out on many sizes."""

    name: str
    config: RunConfig
    arch: Architecture
    """Of every role."""
    machine: Machine
    num_ranks: int
    """That `config.batch` is for where it grows with the ranks."""

    @property
    def archs(self) -> dict[str, Architecture]:
        return dict.fromkeys(self.config.role_settings, self.arch)

    @property
    def ranks_per_node(self) -> int:
        return self.machine.hardware.ranks_per_node

    def with_batch(self, size: int) -> Shape:
        """The same with so many prompts, or examples, a step."""
        batch = self.config.batch.model_copy(update={"size": size})
        return replace(self, config=self.config.model_copy(update={"batch": batch}))

    def grown(self, num_ranks: int) -> Shape | None:
        """The same with the batch of so many ranks; None where it would be less than one prompt an
        optimizer step."""
        size = self.config.batch.size * num_ranks // self.num_ranks
        return self.with_batch(size) if size >= self.config.batch.mini_batches else None


def machine_of(ranks_per_node: int) -> Machine:
    """H100-80 with InfiniBand of 400 Gb/s per GPU, which brings 45 GB/s."""
    return Machine(Hardware(gpu_kind(GPU), ranks_per_node))


def models() -> Sequence[Shape]:
    """GRPO of 7B, 32B and 70B, and of two mixtures of experts."""
    archs = {name: read_architecture(_sizes(name)) for name in _DENSE}
    archs |= {name: architecture_from(sizes) for name, sizes in _MOE.items()}
    config = parse_config(dict(GRPO))
    ranks = config.batch.size // PER_GPU
    return [Shape(name, config, arch, machine_of(8), ranks) for name, arch in archs.items()]


def launched() -> Sequence[Shape]:
    """The runs of launch/*.sbatch for GPU clusters."""
    found = []
    for name, (model, nodes, per_node) in LAUNCHED.items():
        config = load_config(REPOSITORY / f"configs/run/{name}.yaml")
        arch = read_architecture(_sizes(model))
        found.append(Shape(name, config, arch, machine_of(per_node), nodes * per_node))
    return found


def _sizes(model: str) -> Path:
    return REPOSITORY / f"configs/model/{model}.json"
