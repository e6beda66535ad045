"""The model families that are mapped, each with its layer table and the meaning of its
`config.json`; docs/extending.md says how to add one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from verl_hpc.layout.layer_table import LayerTable, Row

_INPUT_NORM = Row(
    "input_layernorm.weight",
    ("hidden_size",),
    "whole",
    "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight",
)

_QKV_WEIGHT = ("self_attention.linear_qkv.weight", "", "self_attn.qkv_proj.weight")
_QKV_BIAS = ("self_attention.linear_qkv.bias", "", "self_attn.qkv_proj.bias")
_Q = Row("self_attn.q_proj.weight", ("q_size", "hidden_size"), "query_heads", *_QKV_WEIGHT)
_K = Row("self_attn.k_proj.weight", ("kv_size", "hidden_size"), "key_value_heads", *_QKV_WEIGHT)
_V = Row("self_attn.v_proj.weight", ("kv_size", "hidden_size"), "key_value_heads", *_QKV_WEIGHT)
_Q_BIAS = Row("self_attn.q_proj.bias", ("q_size",), "query_heads", *_QKV_BIAS)
_K_BIAS = Row("self_attn.k_proj.bias", ("kv_size",), "key_value_heads", *_QKV_BIAS)
_V_BIAS = Row("self_attn.v_proj.bias", ("kv_size",), "key_value_heads", *_QKV_BIAS)
_QK_NORM = (
    Row("self_attn.q_norm.weight", ("head_size",), "whole", "self_attention.q_layernorm.weight"),
    Row("self_attn.k_norm.weight", ("head_size",), "whole", "self_attention.k_layernorm.weight"),
)
_O = Row(
    "self_attn.o_proj.weight",
    ("hidden_size", "q_size"),
    "columns",
    "self_attention.linear_proj.weight",
)

_MLP_NORM = Row(
    "post_attention_layernorm.weight",
    ("hidden_size",),
    "whole",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight",
)
_GATE_UP = ("mlp.linear_fc1.weight", "", "mlp.gate_up_proj.weight")
_MLP = (
    _MLP_NORM,
    Row("mlp.gate_proj.weight", ("ffn_size", "hidden_size"), "rows", *_GATE_UP),
    Row("mlp.up_proj.weight", ("ffn_size", "hidden_size"), "rows", *_GATE_UP),
    Row("mlp.down_proj.weight", ("hidden_size", "ffn_size"), "columns", "mlp.linear_fc2.weight"),
)


def _router(name: str) -> tuple[Row, ...]:
    """Rows of a mixture's norm and router; its norm is not fused into one linear layer."""
    return (
        replace(_MLP_NORM, transformer_engine=""),
        Row(name, ("num_experts", "hidden_size"), "whole", "mlp.router.weight"),
    )


def _experts(prefix: str, gate: str, up: str, down: str) -> tuple[Row, ...]:
    inward = (
        "mlp.experts.local_experts.{}.linear_fc1.weight",
        "mlp.experts.linear_fc1.weight{}",
        f"{prefix}.routed_experts.w13_weight",
    )
    outward = (
        "mlp.experts.local_experts.{}.linear_fc2.weight",
        "mlp.experts.linear_fc2.weight{}",
        f"{prefix}.routed_experts.w2_weight",
    )
    return (
        Row(f"{prefix}.{{}}.{gate}.weight", ("ffn_size", "hidden_size"), "rows", *inward),
        Row(f"{prefix}.{{}}.{up}.weight", ("ffn_size", "hidden_size"), "rows", *inward),
        Row(f"{prefix}.{{}}.{down}.weight", ("hidden_size", "ffn_size"), "columns", *outward),
    )


_LLAMA = LayerTable((_INPUT_NORM, _Q, _K, _V, _O, *_MLP))

# One tensor of a checkpoint, a part of which each row is.
_IN_QKV, _IN_GATE_UP = "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"
_FUSED_QKV = tuple(replace(row, name=_IN_QKV) for row in (_Q, _K, _V))
_FUSED_MLP = (_MLP[0], *(replace(row, name=_IN_GATE_UP) for row in _MLP[1:3]), _MLP[3])


@dataclass(frozen=True)
class Family:
    """A model family.

    Args:
        table: the tensors of its decoder layer.
        defaults: what transformers takes for fields of `config.json` that are left out, where it
            differs from `HfConfig`; vLLM and fully_shard compute with transformers' value.
        refused: why a field that is given is refused, in words that follow "FIELD in a FAMILY".
        norm_topk_prob: whether the field of this name decides if the weights of a token's experts
            sum to one; in other families they do.
    """

    table: LayerTable
    defaults: Mapping[str, Any] = field(default_factory=dict)
    refused: Mapping[str, str] = field(default_factory=dict)
    norm_topk_prob: bool = False


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
        LayerTable((_INPUT_NORM, _Q, _Q_BIAS, _K, _K_BIAS, _V, _V_BIAS, _O, *_MLP)),
        defaults={
            "num_key_value_heads": 32,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
    ),
    "qwen3": Family(
        LayerTable((_INPUT_NORM, _Q, _K, _V, *_QK_NORM, _O, *_MLP)),
        defaults={
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
        },
    ),
    "phi3": Family(
        LayerTable((_INPUT_NORM, *_FUSED_QKV, _O, *_FUSED_MLP)),
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
            (_INPUT_NORM, _Q, _K, _V, _O, *_router("block_sparse_moe.gate.weight")),
            _experts("block_sparse_moe.experts", "w1", "w3", "w2"),
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
    "qwen3_moe": Family(
        LayerTable(
            (_INPUT_NORM, _Q, _K, _V, *_QK_NORM, _O, *_router("mlp.gate.weight")),
            _experts("mlp.experts", "gate_proj", "up_proj", "down_proj"),
        ),
        defaults={
            "num_key_value_heads": 4,
            "moe_intermediate_size": 768,
            "max_position_embeddings": 32768,
            "sliding_window": 4096,
            "num_experts_per_tok": 8,
        },
        norm_topk_prob=True,
    ),
}
"""Families by `model_type` of a `config.json`."""
