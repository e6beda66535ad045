"""The layer table of each model family; CONTRIBUTING.md says how to add one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

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

FAMILIES: Mapping[str, LayerTable] = {
    "llama": _LLAMA,
    "mistral": _LLAMA,
    "qwen2": LayerTable((_INPUT_NORM, _Q, _Q_BIAS, _K, _K_BIAS, _V, _V_BIAS, _O, *_MLP)),
    "qwen3": LayerTable((_INPUT_NORM, _Q, _K, _V, *_QK_NORM, _O, *_MLP)),
    "phi3": LayerTable((_INPUT_NORM, *_FUSED_QKV, _O, *_FUSED_MLP)),
    "ernie4_5": LayerTable(_LLAMA.rows, rotary_interleaved=True),
    "mixtral": LayerTable(
        (_INPUT_NORM, _Q, _K, _V, _O, *_router("block_sparse_moe.gate.weight")),
        _experts("block_sparse_moe.experts", "w1", "w3", "w2"),
    ),
    "qwen3_moe": LayerTable(
        (_INPUT_NORM, _Q, _K, _V, *_QK_NORM, _O, *_router("mlp.gate.weight")),
        _experts("mlp.experts", "gate_proj", "up_proj", "down_proj"),
    ),
}
"""Layer tables by `model_type` of a `config.json`."""
