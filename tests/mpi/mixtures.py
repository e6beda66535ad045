"""Small mixtures of experts, and engines of them on given sizes."""

from __future__ import annotations

from tests.mpi.engines_for_tests import build_engine
from verl_hpc.layout.megatron import TrainLayout

FULL = {"recompute": "full"}
QWEN = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
MODELS = {
    "normalised": ("qwen3_moe", QWEN | {"norm_topk_prob": True}),
    "raw": ("qwen3_moe", QWEN | {"norm_topk_prob": False}),
    "mixtral": ("mixtral", {"num_local_experts": 8, "intermediate_size": 32}),
}


def mixture(tiny_model, model: str):
    """A model's directory, and its family."""
    family, fields = MODELS[model]
    return tiny_model(family, num_hidden_layers=4, num_key_value_heads=4, **fields), family


def engine_on(here, directory, sizes, max_tokens: int = 64, **settings):
    """An engine on these sizes, which may say what is recomputed, too."""
    sizes = dict(sizes)
    recompute = {name: sizes.pop(name) for name in ("recompute",) if name in sizes}
    layout = TrainLayout(**sizes)
    return build_engine(
        here,
        directory,
        layout,
        sequence_parallel=layout.tp > 1,
        max_tokens=max_tokens,
        **recompute,
        **settings,
    )
