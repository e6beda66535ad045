"""Rows that layer tables of several families have in common (`layout/families.py`)."""

from __future__ import annotations

from dataclasses import replace

from verl_hpc.layout.layer_table import Row, Size, Split

INPUT_NORM = Row(
    "input_layernorm.weight",
    ("hidden_size",),
    "whole",
    "input_layernorm.weight",
    "self_attention.linear_qkv.layer_norm_weight",
)

QKV_WEIGHT = ("self_attention.linear_qkv.weight", "", "self_attn.qkv_proj.weight")
QKV_BIAS = ("self_attention.linear_qkv.bias", "", "self_attn.qkv_proj.bias")
Q = Row("self_attn.q_proj.weight", ("q_size", "hidden_size"), "query_heads", *QKV_WEIGHT)
K = Row("self_attn.k_proj.weight", ("kv_size", "hidden_size"), "key_value_heads", *QKV_WEIGHT)
V = Row("self_attn.v_proj.weight", ("kv_size", "hidden_size"), "key_value_heads", *QKV_WEIGHT)
Q_BIAS = Row("self_attn.q_proj.bias", ("q_size",), "query_heads", *QKV_BIAS)
K_BIAS = Row("self_attn.k_proj.bias", ("kv_size",), "key_value_heads", *QKV_BIAS)
V_BIAS = Row("self_attn.v_proj.bias", ("kv_size",), "key_value_heads", *QKV_BIAS)
QK_NORM = (
    Row("self_attn.q_norm.weight", ("head_size",), "whole", "self_attention.q_layernorm.weight"),
    Row("self_attn.k_norm.weight", ("head_size",), "whole", "self_attention.k_layernorm.weight"),
)
OPTIONAL_BIAS = tuple(replace(row, needs="attention_bias") for row in (Q_BIAS, K_BIAS, V_BIAS))
OPTIONAL_QK_NORM = tuple(replace(row, needs="use_qk_norm") for row in QK_NORM)
OUT = Row(
    "self_attn.o_proj.weight",
    ("hidden_size", "q_size"),
    "columns",
    "self_attention.linear_proj.weight",
)
OUT_BIAS = Row(
    "self_attn.o_proj.bias", ("hidden_size",), "whole", "self_attention.linear_proj.bias"
)
SINKS = Row(
    "self_attn.sinks", ("num_heads",), "rows", "self_attention.core_attention.softmax_offset"
)
"""A score of each head that takes a share of its softmax and has no value."""

MLP_NORM = Row(
    "post_attention_layernorm.weight",
    ("hidden_size",),
    "whole",
    "pre_mlp_layernorm.weight",
    "mlp.linear_fc1.layer_norm_weight",
)
GATE_UP = ("mlp.linear_fc1.weight", "", "mlp.gate_up_proj.weight")
MLP = (
    MLP_NORM,
    Row("mlp.gate_proj.weight", ("ffn_size", "hidden_size"), "rows", *GATE_UP),
    Row("mlp.up_proj.weight", ("ffn_size", "hidden_size"), "rows", *GATE_UP),
    Row("mlp.down_proj.weight", ("hidden_size", "ffn_size"), "columns", "mlp.linear_fc2.weight"),
)


def router(name: str) -> tuple[Row, ...]:
    """Rows of a mixture's norm and router; its norm is not fused into one linear layer."""
    return (
        replace(MLP_NORM, transformer_engine=""),
        Row(name, ("num_experts", "hidden_size"), "whole", "mlp.router.weight"),
    )


def experts(prefix: str, gate: str, up: str, down: str) -> tuple[Row, ...]:
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


def stacked_experts(prefix: str) -> tuple[Row, ...]:
    """Rows of experts that are one tensor in the checkpoint, with biases; rows of gate and up
    alternate. Where an expert is cut, the first part of it adds its last bias."""
    linear: tuple[tuple[str, tuple[Size, Size], Split, Split, str, str], ...] = (
        ("gate_up_proj", ("gate_up_size", "hidden_size"), "rows", "rows", "fc1", "w13"),
        ("down_proj", ("hidden_size", "ffn_size"), "columns", "whole", "fc2", "w2"),
    )
    return tuple(
        Row(
            f"{prefix}.{name}{'_bias' * (part == 'bias')}",
            shape if part == "weight" else shape[:1],
            split if part == "weight" else split_of_bias,
            f"mlp.experts.local_experts.{{}}.linear_{number}.{part}",
            f"mlp.experts.linear_{number}.{part}{{}}",
            f"{prefix}.routed_experts.{vllm}_{part}",
            is_stacked=True,
        )
        for name, shape, split, split_of_bias, number, vllm in linear
        for part in ("weight", "bias")
    )


LATENT_INPUT = "self_attn.fused_qkv_a_proj.weight"
KV_DOWN = Row(
    "self_attn.kv_a_proj_with_mqa.weight",
    ("kv_down_size", "hidden_size"),
    "whole",
    "self_attention.linear_kv_down_proj.weight",
)
LATENT = (
    replace(INPUT_NORM, transformer_engine=""),
    Row(
        "self_attn.q_a_proj.weight",
        ("q_rank", "hidden_size"),
        "whole",
        "self_attention.linear_q_down_proj.weight",
        vllm=LATENT_INPUT,
        needs="low_rank_queries",
    ),
    replace(KV_DOWN, vllm=LATENT_INPUT, needs="low_rank_queries"),
    Row(
        "self_attn.q_a_layernorm.weight",
        ("q_rank",),
        "whole",
        "self_attention.q_layernorm.weight",
        "self_attention.linear_q_up_proj.layer_norm_weight",
        needs="low_rank_queries",
    ),
    Row(
        "self_attn.q_b_proj.weight",
        ("q_size", "q_rank"),
        "rows",
        "self_attention.linear_q_up_proj.weight",
        needs="low_rank_queries",
    ),
    Row(
        "self_attn.q_proj.weight",
        ("q_size", "hidden_size"),
        "rows",
        "self_attention.linear_q_proj.weight",
        needs="direct_queries",
    ),
    replace(KV_DOWN, needs="direct_queries"),
    Row(
        "self_attn.kv_a_layernorm.weight",
        ("kv_rank",),
        "whole",
        "self_attention.kv_layernorm.weight",
        "self_attention.linear_kv_up_proj.layer_norm_weight",
    ),
    Row(
        "self_attn.kv_b_proj.weight",
        ("kv_up_size", "kv_rank"),
        "rows",
        "self_attention.linear_kv_up_proj.weight",
    ),
    replace(OUT, shape=("hidden_size", "o_size")),
)
"""Multi-latent attention; every rank has the whole down projections."""

SHARED_GATE = Row(
    "mlp.shared_experts.gate_proj.weight",
    ("shared_ffn_size", "hidden_size"),
    "rows",
    "mlp.shared_experts.linear_fc1.weight",
    vllm="mlp.shared_experts.gate_up_proj.weight",
    needs="shared_ffn_size",
)
SHARED = (
    SHARED_GATE,
    replace(SHARED_GATE, name="mlp.shared_experts.up_proj.weight"),
    Row(
        "mlp.shared_experts.down_proj.weight",
        ("hidden_size", "shared_ffn_size"),
        "columns",
        "mlp.shared_experts.linear_fc2.weight",
        needs="shared_ffn_size",
    ),
)
GATED_SHARED = (
    # Megatron-core registers the gate before the layers that it weights.
    Row(
        "mlp.shared_expert_gate.weight",
        ("one", "hidden_size"),
        "whole",
        "mlp.shared_experts.gate_weight",
    ),
    *(
        replace(
            row,
            name=row.name.replace("shared_experts", "shared_expert"),
            vllm=row.vllm.replace("shared_experts", "shared_expert"),
        )
        for row in SHARED
    ),
)
"""One shared expert, whose output each token weights by a gate of its own."""
ROUTER_BIAS = Row(
    "mlp.gate.e_score_correction_bias",
    ("num_experts",),
    "whole",
    "mlp.router.expert_bias",
    is_buffer=True,
)
DENSE_GATE = replace(MLP[1], shape=("dense_ffn_size", "hidden_size"))
DENSE_MLP = (
    MLP_NORM,
    DENSE_GATE,
    replace(DENSE_GATE, name=MLP[2].name),
    replace(MLP[3], shape=("hidden_size", "dense_ffn_size")),
)
"""An MLP in a model whose `ffn_size` is that of its experts."""

# One tensor of a checkpoint, a part of which each row is.
IN_QKV, IN_GATE_UP = "self_attn.qkv_proj.weight", "mlp.gate_up_proj.weight"
FUSED_QKV = tuple(replace(row, name=IN_QKV) for row in (Q, K, V))
FUSED_MLP = (MLP[0], *(replace(row, name=IN_GATE_UP) for row in MLP[1:3]), MLP[3])
