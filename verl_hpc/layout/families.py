"""The model families that are mapped, each with its layer table and the meaning of its
`config.json`; docs/extending.md says how to add one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verl_hpc.layout.family_rows import (
    DENSE_MLP,
    FUSED_MLP,
    FUSED_QKV,
    GATED_SHARED,
    INPUT_NORM,
    K_BIAS,
    LATENT,
    MLP,
    OPTIONAL_BIAS,
    OPTIONAL_QK_NORM,
    OUT,
    OUT_BIAS,
    Q_BIAS,
    QK_NORM,
    ROUTER_BIAS,
    SHARED,
    SINKS,
    V_BIAS,
    K,
    Q,
    V,
    experts,
    router,
    stacked_experts,
)
from verl_hpc.layout.layer_table import LayerTable, Row


@dataclass(frozen=True)
class Family:
    """A model family.

    Args:
        table: the tensors of its decoder layer.
        defaults: what transformers takes for fields of `config.json` that are left out, where it
            differs from `HfConfig`; vLLM and fully_shard compute with transformers' value.
        refused: why a field that is given is refused, in words that follow "FIELD in a FAMILY".
        dense_table: the tensors of its first layers, where experts are in later ones alone.
        sigmoid_router: whether a router's scores are sigmoids, scaled and chosen in groups.
        norm_topk_prob: whether the field of this name decides if the weights of a token's experts
            sum to one; in other families they do.
        heads_fill_hidden: whether a head has hidden_size / num_attention_heads elements, whatever
            `head_dim` says.
        partial_rotary: whether the field `partial_rotary_factor` says what share of a head's
            elements is rotated; others rotate whole heads, and refuse it.
        full_attention_every: in each so many layers the last attends to all tokens before its own,
            the others to a window (`sliding_window`); 0: windows are refused.
        computed: values of fields that are computed whatever `config.json` says, by vLLM at least.
        rope_types: the only ways to scale positions that vLLM computes; any if empty.
    """

    table: LayerTable
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    dense_table: LayerTable = field(default=LayerTable(()))
    sigmoid_router: bool = False
    norm_topk_prob: bool = False
    heads_fill_hidden: bool = False
    partial_rotary: bool = False
    full_attention_every: int = 0
    computed: Mapping[str, Any] = field(default_factory=dict)
    rope_types: tuple[str, ...] = ()


_EXPERTS = experts("mlp.experts", "gate_proj", "up_proj", "down_proj")
_DEEPSEEK_V3 = Family(
    LayerTable((*LATENT, *router("mlp.gate.weight"), ROUTER_BIAS, *SHARED), _EXPERTS),
    dense_table=LayerTable((*LATENT, *DENSE_MLP)),
    defaults={
        "num_key_value_heads": 128,
        "max_position_embeddings": 4096,
        "moe_intermediate_size": 2048,
        "n_routed_experts": 256,
        "num_experts_per_tok": 8,
        "n_shared_experts": 1,
        "first_k_dense_replace": 3,
        "q_lora_rank": 1536,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "qk_nope_head_dim": 128,
        "v_head_dim": 128,
        "n_group": 8,
        "topk_group": 4,
        "routed_scaling_factor": 2.5,
    },
    sigmoid_router=True,
    norm_topk_prob=True,
)

_BIASED_ATTENTION = (INPUT_NORM, Q, Q_BIAS, K, K_BIAS, V, V_BIAS, OUT)
_LLAMA = LayerTable((INPUT_NORM, Q, K, V, OUT, *MLP))
_GLM4_ATTENTION = (INPUT_NORM, Q, K, V, *OPTIONAL_BIAS, *OPTIONAL_QK_NORM, OUT)
_SINK_ATTENTION = tuple(
    replace(row, vllm=row.parameter("vllm").replace("self_attn.", "attn."))
    for row in (*_BIASED_ATTENTION, OUT_BIAS, SINKS)
)
_GLM4_NORM, _GLM4_ROUTER = router("mlp.gate.weight")
FAMILIES: Mapping[str, Family] = {
    "llama": Family(_LLAMA),
    "mistral": Family(
        _LLAMA,
        defaults={
            "num_key_value_heads": 8,
            "max_position_embeddings": 131072,
            "sliding_window": 4096,
            "use_sliding_window": True,
        },
        refused={
            "layer_types": "make transformers take it for a ministral, which is not supported; "
            "remove them if all layers are full_attention"
        },
    ),
    "qwen2": Family(
        LayerTable((*_BIASED_ATTENTION, *MLP)),
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
    ),
    "qwen3": Family(
        LayerTable((INPUT_NORM, Q, K, V, *QK_NORM, OUT, *MLP)),
        defaults={
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
    ),
    "phi3": Family(
        LayerTable((INPUT_NORM, *FUSED_QKV, OUT, *FUSED_MLP)),
        defaults={
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 4096,
            "use_sliding_window": True,
        },
    ),
    "ernie4_5": Family(
        LayerTable(_LLAMA.rows, rotary_interleaved=True),
        defaults={
            "num_key_value_heads": 2,
            "head_dim": 128,
            "tie_word_embeddings": True,
            "rms_norm_eps": 1e-5,
            "rope_theta": 500000.0,
            "max_position_embeddings": 131072,
        },
    ),
    "mixtral": Family(
        LayerTable(
            (INPUT_NORM, Q, K, V, OUT, *router("block_sparse_moe.gate.weight")),
            experts("block_sparse_moe.experts", "w1", "w3", "w2"),
        ),
        defaults={
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "max_position_embeddings": 131072,
            "use_sliding_window": True,
            "num_experts_per_tok": 2,
        },
    ),
    "qwen2_moe": Family(
        LayerTable((*_BIASED_ATTENTION, *router("mlp.gate.weight"), *GATED_SHARED), _EXPERTS),
        defaults={
            "num_key_value_heads": 16,
            "moe_intermediate_size": 1408,
            "shared_expert_intermediate_size": 5632,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "num_experts": 60,
            "num_experts_per_tok": 4,
        },
        norm_topk_prob=True,
        heads_fill_hidden=True,
    ),
    "qwen3_moe": Family(
        LayerTable((INPUT_NORM, Q, K, V, *QK_NORM, OUT, *router("mlp.gate.weight")), _EXPERTS),
        defaults={
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "num_experts_per_tok": 8,
        },
        norm_topk_prob=True,
    ),
    "deepseek_v3": _DEEPSEEK_V3,
    "kimi_k2": _DEEPSEEK_V3,
    "glm4_moe": Family(
        LayerTable(
            (
                *_GLM4_ATTENTION,
                _GLM4_NORM,
                replace(_GLM4_ROUTER, is_float32_in_vllm=True),
                ROUTER_BIAS,
                *SHARED,
            ),
            _EXPERTS,
        ),
        dense_table=LayerTable((*_GLM4_ATTENTION, *DENSE_MLP)),
        defaults={
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "max_position_embeddings": 131072,
            "moe_intermediate_size": 1408,
            "n_routed_experts": 128,
            "num_experts_per_tok": 8,
            "n_shared_experts": 1,
            "first_k_dense_replace": 1,
            "partial_rotary_factor": 0.5,
            # Fields of DeepSeek's that this family's configuration does not have.
            "scoring_func": "sigmoid",
            "topk_method": "noaux_tc",
            "norm_topk_prob": True,
            "tie_word_embeddings": False,
        },
        computed={"tie_word_embeddings": False},
        sigmoid_router=True,
        norm_topk_prob=True,
        partial_rotary=True,
    ),
    "gpt_oss": Family(
        LayerTable(
            (
                *_SINK_ATTENTION,
                *router("mlp.router.weight"),
                Row("mlp.router.bias", ("num_experts",), "whole", "mlp.router.bias"),
            ),
            stacked_experts("mlp.experts"),
            clamped_swiglu=True,
            vllm_embedding="model.embedding.weight",
        ),
        defaults={
            "num_key_value_heads": 8,
            "head_dim": 64,
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "rope_theta": 150000.0,
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 32.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 4096,
            },
            "max_position_embeddings": 131072,
            "sliding_window": 128,
            "num_local_experts": 128,
            "num_experts_per_tok": 4,
            "tie_word_embeddings": False,
        },
        full_attention_every=2,
        computed={
            "attention_bias": True,
            "rms_norm_eps": 1e-5,
            "swiglu_alpha": 1.702,
            "swiglu_limit": 7.0,
            "tie_word_embeddings": False,
        },
        rope_types=("yarn",),
    ),
}
"""Families by `model_type` of a `config.json`."""


def has_table(family: str, engine: str) -> bool:
    """Whether a training engine computes a family by its layer table.

    With fully_shard mixtures of experts, whose experts transformers stacks in one parameter, train
    by the names of their tensors, as families without a table do.
    """
    known = FAMILIES.get(family)
    return known is not None and (engine == "megatron" or not known.table.expert_rows)
