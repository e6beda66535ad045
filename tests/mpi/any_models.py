"""Small models of families without a layer table, by transformers' own settings."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from verl_hpc.layout.not_mapped import WITH_IMAGES
from verl_hpc.testing.tiny import make_tiny_model
from verl_hpc.testing.vision import make_vision_model

EXPERTS = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 128,
    "beta_fast": 32.0,
    "beta_slow": 1.0,
}
LATENT = {
    "hidden_size": 128,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "kv_lora_rank": 512,
    "q_lora_rank": 64,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "n_group": 2,
    "topk_group": 1,
    "first_k_dense_replace": 1,
    "moe_intermediate_size": 64,
    "n_shared_experts": 1,
    "num_hidden_layers": 3,
    "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0},
}
SHARED = EXPERTS | {"shared_expert_intermediate_size": 64}
NO_AUX = {"topk_method": "noaux_tc", "scoring_func": "sigmoid"}
SPARSE = LATENT | NO_AUX | {"index_topk": 8, "index_n_heads": 32}
DELTA = {
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 2,
    "linear_key_head_dim": 128,
    "linear_value_head_dim": 128,
    "linear_conv_kernel_dim": 4,
    "num_hidden_layers": 4,
}
MAMBA = {
    "num_hidden_layers": 4,
    "mamba_num_heads": 4,
    "mamba_head_dim": 32,
    "ssm_state_size": 16,
    "n_groups": 2,
}
WINDOWS = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
ROUTED = {"n_routed_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 64}
ONE_GROUP = ROUTED | {
    "n_group": 1,
    "topk_group": 1,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
}

MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt_oss": (
        "gpt_oss",
        {
            "hidden_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "intermediate_size": 64,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "sliding_window": 8,
            "rope_parameters": YARN | {"truncate": False},
        },
    ),
    "deepseek_v3": ("deepseek_v3", LATENT | NO_AUX),
    "deepseek_v2": ("deepseek_v2", LATENT | {"topk_method": "greedy", "n_group": 1}),
    "glm4_moe": ("glm4_moe", ONE_GROUP | {"use_qk_norm": True}),
    "gemma2": ("gemma2", {"tied": True, "sliding_window": 8, "query_pre_attn_scalar": 32}),
    "gemma3_text": ("gemma3_text", {"tied": True, **WINDOWS, "query_pre_attn_scalar": 32}),
    "qwen3_next": ("qwen3_next", SHARED | DELTA),
    "qwen3_5_text": ("qwen3_5_text", DELTA | {"tied": True, "mamba_ssm_dtype": "float32"}),
    # All experts: in bfloat16 vLLM would choose others of some tokens than the trainer.
    "qwen3_5_moe_text": ("qwen3_5_moe_text", SHARED | DELTA | {"num_experts_per_tok": 4}),
    "glm_moe_dsa": ("glm_moe_dsa", SPARSE),
    "deepseek_v32": ("deepseek_v32", SPARSE),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", WINDOWS),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 12.0,
            "logits_scaling": 8.0,
            "residual_multiplier": 0.22,
            "attention_multiplier": 0.15,
        },
    ),
    "qwen2_moe": ("qwen2_moe", SHARED),
    "minimax_m2": (
        "minimax_m2",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "intermediate_size": 64,
            "rotary_dim": 32,
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
        },
    ),
    "nemotron_h": (
        "nemotron_h",
        ROUTED
        | MAMBA
        | {
            "layers_block_type": ["mamba", "moe", "attention", "moe"],
            "moe_shared_expert_intermediate_size": 64,
            "n_group": 1,
            "topk_group": 1,
        },
    ),
    "nemotron_h_dense": (
        "nemotron_h",
        MAMBA | {"layers_block_type": ["mamba", "mlp", "attention", "mlp"]},
    ),
    "llama4_text": (
        "llama4_text",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "intermediate_size": 64,
            "intermediate_size_mlp": 96,
            "interleave_moe_layer_step": 1,
            "num_hidden_layers": 4,
        },
    ),
    "smollm3": ("smollm3", {"tied": True, "num_hidden_layers": 4, "no_rope_layer_interval": 4}),
    "cohere2": (
        "cohere2",
        {"tied": True, "rms_norm_eps": None, "sliding_window": 128, "num_hidden_layers": 4},
    ),
    "starcoder2": ("starcoder2", {"tied": True, "use_bias": True, "sliding_window": None}),
    "gpt2": ("gpt2", {"tied": True, "n_inner": 96}),
    "gemma": ("gemma", {"tied": True}),
    "phi": ("phi", {}),
    "gpt_neox": ("gpt_neox", {}),
    "stablelm": ("stablelm", {}),
    "cohere": ("cohere", {"tied": True, "rms_norm_eps": None}),
    "glm4": ("glm4", {}),
    "seed_oss": ("seed_oss", {}),
    "falcon_h1": (
        "falcon_h1",
        {
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_d_ssm": 128,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
        },
    ),
    "opt": ("opt", {"tied": True, "word_embed_proj_dim": 64, "ffn_dim": 96}),
    "bloom": ("bloom", {"tied": True}),
    "nemotron": ("nemotron", {}),
    "arcee": ("arcee", {}),
    "hunyuan_v1_dense": ("hunyuan_v1_dense", {}),
    "granitemoe": ("granitemoe", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "olmoe": ("olmoe", EXPERTS | {"intermediate_size": 64}),
    "mixtral": ("mixtral", {"num_local_experts": 4, "num_experts_per_tok": 2}),
    "qwen3_moe": ("qwen3_moe", EXPERTS),
    "dots1": ("dots1", ONE_GROUP | {"layer_types": ["full_attention"] * 2}),
    "ernie4_5_moe": (
        "ernie4_5_moe",
        {
            "moe_num_experts": 4,
            "moe_k": 2,
            "moe_intermediate_size": 64,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
        },
    ),
    "hy_v3": (
        "hy_v3",
        EXPERTS
        | {
            "num_shared_experts": 1,
            "first_k_dense_replace": 1,
            "expert_hidden_dim": 64,
            "route_norm": True,
            "qk_norm": True,
        },
    ),
    "exaone4": ("exaone4", {"layer_types": ["full_attention"] * 2}),
    "kimi_k2": ("deepseek_v3", LATENT | NO_AUX),
    "mamba": ("mamba", {"state_size": 8, "time_step_rank": 4}),
    "mamba2": ("mamba2", {"num_heads": 4, "head_dim": 32, "state_size": 16, "n_groups": 1}),
    "falcon_mamba": ("falcon_mamba", {"state_size": 8, "time_step_rank": 4}),
    "mpt": ("mpt", {"tied": True}),
    "gptj": ("gptj", {"rotary_dim": 16}),
    "glm": ("glm", {}),
    "olmo": ("olmo", {}),
    "granitemoehybrid": (
        "granitemoehybrid",
        {
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "layer_types": ["mamba", "attention"],
            "mamba_n_heads": 4,
            "mamba_d_head": 32,
            "mamba_d_state": 16,
            "mamba_n_groups": 1,
            "shared_intermediate_size": 64,
        },
    ),
    "apertus": ("apertus", {}),
    **{family: (family, {}) for family in WITH_IMAGES},
}
"""Models by name: the family that transformers has, and fields of `config.json`."""

UNKNOWN_TO_VLLM = {"mpt", "glm_moe_dsa", "deepseek_v32"}
"""Models that vLLM does not compute, or on GPUs alone and with indexers in 8 bits."""
NOT_IN_VLLM = {"minimax_m2", "nemotron_h", "mamba", "falcon_mamba"} | UNKNOWN_TO_VLLM
"""Models that vLLM has no kernels for on CPUs, or does not compute."""
OTHER_IN_VLLM = {"ernie4_5_moe", "exaone4"}
"""Models for which vLLM computes other log-probs than transformers, by 0.1 and more."""
BFLOAT16_IN_VLLM = {"qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text"}
BFLOAT16_IN_VLLM |= {"qwen3_next", "apertus"}
"""Models some of whose layers vLLM computes in bfloat16 alone, Qwen's on CPUs only."""
OFTEN = ("gpt_oss", "deepseek_v3")
"""Models of `make test`: fused experts under one name, and experts, buffers and derived weights."""


def some_models(*left_out: str):
    """Parameters of a test: all models but those left out, most of them in `make slow`."""
    slow = pytest.mark.slow(reason="a further family; run with --slow")
    return [
        pytest.param(name, marks=() if name in OFTEN else slow)
        for name in MODELS
        if name not in left_out
    ]


def any_model(here, shared_directory: Path, name: str) -> Path:
    """The directory of a model of MODELS, with noise on every parameter."""
    directory = shared_directory / name
    if here.world.rank == 0 and not directory.exists():
        family, fields = MODELS[name]
        sizes = {"num_attention_heads": 2, "num_key_value_heads": 2, "num_hidden_layers": 2}
        if family in WITH_IMAGES:
            make_vision_model(directory, family, noise=0.05)
        else:
            make_tiny_model(directory, family, noise=0.05, **(sizes | fields))
        if name == "kimi_k2":  # a family of its own in config.json alone
            file = directory / "config.json"
            config = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps(config | {"model_type": name}), encoding="utf-8")
    here.control.barrier()
    return directory
