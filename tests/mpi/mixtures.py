"""The families of models that tests take, small mixtures of experts, and engines on given sizes."""

from __future__ import annotations

from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import engine_of_sizes
from verl_hpc.layout.families import FAMILIES

FULL = {"recompute": "full"}
QWEN = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
MODELS = {
    "normalised": ("qwen3_moe", QWEN | {"norm_topk_prob": True}),
    "raw": ("qwen3_moe", QWEN | {"norm_topk_prob": False}),
    "mixtral": ("mixtral", {"num_local_experts": 8, "intermediate_size": 32}),
}
"""Mixtures of experts by name: their families, and fields of their `config.json`."""
VLLM_SIZES = VLLM_HEADS | {"num_hidden_layers": 2, "num_key_value_heads": 4}
DENSE = sorted(name for name, family in FAMILIES.items() if not family.table.expert_rows)
"""All other families; a new one is among them, and a new mixture is to have an entry of MODELS."""


def mixture(tiny_model, model: str, **sizes):
    """A model's directory, and its family."""
    family, fields = MODELS[model]
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 4, **fields, **sizes}
    return tiny_model(family, **sizes), family


def engine_on(here, directory, sizes, max_tokens: int = 64, **settings):
    """An engine with sequence parallelism wherever there is tensor parallelism."""
    sizes = {"sp": sizes.get("tp", 1) > 1, **sizes}
    return engine_of_sizes(here, directory, sizes, max_tokens=max_tokens, **settings)
