"""The families of models that tests take, small mixtures of experts, and engines on given sizes."""

from __future__ import annotations

from tests.mpi.any_models import YARN
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import engine_of_sizes
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.families import FAMILIES

FULL = {"recompute": "full"}
QWEN = {"num_experts": 8, "moe_intermediate_size": 32, "num_experts_per_tok": 2}
ROUTED = {
    "intermediate_size": 48,
    "moe_intermediate_size": 32,
    "n_routed_experts": 8,
    "num_experts_per_tok": 2,
    "routed_scaling_factor": 2.5,
    "n_shared_experts": 2,
    "first_k_dense_replace": 1,
}
"""Experts and shared ones behind a dense layer."""
LATENT = ROUTED | {
    "num_key_value_heads": 8,
    "head_dim": 8,
    "q_lora_rank": 24,
    "kv_lora_rank": 32,
    "qk_nope_head_dim": 16,
    "qk_rope_head_dim": 8,
    "v_head_dim": 12,
    "n_group": 4,
    "topk_group": 2,
    "rope_parameters": YARN | {"mscale": 0.7, "mscale_all_dim": 1.0},
    "rms_norm_eps": 1e-6,
    "scoring_func": "sigmoid",
    "topk_method": "noaux_tc",
}
"""Latent attention, a dense layer, and experts in groups that are chosen with a bias."""
MODELS = {
    "normalised": ("qwen3_moe", QWEN | {"norm_topk_prob": True}),
    "raw": ("qwen3_moe", QWEN | {"norm_topk_prob": False}),
    "latent": ("deepseek_v3", LATENT),
    "direct": (
        "deepseek_v3",
        LATENT | {"q_lora_rank": None, "n_group": 1, "topk_group": 1, "rope_parameters": None},
    ),
    "glm": (
        "glm4_moe",
        ROUTED
        | {
            "head_dim": 32,
            "n_group": 4,
            "topk_group": 2,
            "num_experts_per_tok": 3,
            "attention_bias": True,
            "use_qk_norm": True,
        },
    ),
    "gated": ("qwen2_moe", QWEN | {"shared_expert_intermediate_size": 48}),
    "mixtral": ("mixtral", {"num_local_experts": 8, "intermediate_size": 32}),
    "sinks": (
        "gpt_oss",
        {
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
            "intermediate_size": 32,
            "sliding_window": 8,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
}
"""Mixtures of experts by name: their families, and fields of their `config.json`."""
VLLM_SIZES = VLLM_HEADS | {"num_hidden_layers": 2, "num_key_value_heads": 4}
VLLM_LATENT = {"kv_lora_rank": 512, "qk_rope_head_dim": 64, "head_dim": 64}
"""The sizes for which vLLM has a kernel of latent attention on CPUs."""
DENSE = sorted(name for name, family in FAMILIES.items() if not family.table.expert_rows)
"""All families without experts; a new mixture is to have an entry of MODELS."""


def mixture(tiny_model, model: str, **sizes):
    """A model's directory, and its family."""
    family, fields = MODELS[model]
    sizes = {"num_hidden_layers": 4, "num_key_value_heads": 4, **fields, **sizes}
    return tiny_model(family, **sizes), family


def mixture_for_vllm(tiny_model, model: str, **sizes):
    """`mixture` of sizes that vLLM computes on CPUs."""
    latent = VLLM_LATENT if model in ("latent", "direct") else {}
    return mixture(tiny_model, model, **{**VLLM_SIZES, **latent, **sizes})


def engine_on(here, directory, sizes, max_tokens: int = 64, **settings):
    """An engine with sequence parallelism wherever there is tensor parallelism. Experts with
    biases are whole on each rank: what would share an expert has experts of its own."""
    sizes = {"sp": sizes.get("tp", 1) > 1, **sizes}
    if "etp" in sizes and read_architecture(directory).linear_bias:
        sizes["ep"] = sizes.get("ep", 1) * sizes.pop("etp")
    return engine_of_sizes(here, directory, sizes, max_tokens=max_tokens, **settings)
