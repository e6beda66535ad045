"""Variants of a model family that would otherwise silently be computed wrongly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from verl_hpc.layout.families import FAMILIES, Family
from verl_hpc.layout.hf_config import SCALED_ROPE, HfConfig

QUANTISED = (
    "quantised weights are not trained; convert them to bfloat16 with transformers first, and "
    "remove the field"
)
_BY_TRANSFORMERS = "choose parallel.engine: fsdp with rollout.engine: hf"
"""What to do where vLLM, or Megatron-core, does not read a field."""
_SIGMOID_ROUTER = {"scoring_func": "sigmoid", "topk_method": "noaux_tc", "norm_topk_prob": True}
"""The only values of fields of a router by sigmoids."""
_NEVER_EMPTY = ("num_experts_per_tok", "partial_rotary_factor", "shared_expert_intermediate_size")
"""Fields that have a default where they are left out, and none where they are null or zero."""


def problems_of(fields: HfConfig) -> Iterator[str]:
    """What is not supported, each in words that name the field."""
    family = FAMILIES[fields.model_type]
    has_bias = family.table.has("self_attn.q_proj.bias")
    refused = {
        "attention_bias": fields.attention_bias and not has_bias,
        "qkv_bias": fields.qkv_bias is False and has_bias,
        "mlp_bias": fields.mlp_bias,
        "use_bias": fields.use_bias,
        "is_encoder_decoder": fields.is_encoder_decoder,
        "return_dict": fields.return_dict is False,
    }
    for field, present in refused.items():
        if present:
            yield f"{field} = {getattr(fields, field)!r} is not supported"
    if fields.quantization_config:
        yield f"quantization_config = {fields.quantization_config!r}: {QUANTISED}"
    for field in _NEVER_EMPTY:
        if field in family.defaults and not getattr(fields, field):
            yield (
                f"{field} = {getattr(fields, field)!r} in a {fields.model_type}, which is computed "
                "with a number above 0: set it as the model's publisher does, or remove it for "
                f"{family.defaults[field]}"
            )
    yield from _problems_of_values(fields, family)
    hidden, heads = fields.hidden_size, fields.num_attention_heads
    if family.heads_fill_hidden and heads * fields.head_size != hidden:
        yield (
            f"head_dim = {fields.head_dim} in a {fields.model_type}, which vLLM takes to be "
            f"hidden_size / num_attention_heads = {hidden} / {heads}; choose parallel.engine: fsdp "
            "and rollout.engine: hf"
        )
    if fields.hidden_act != "silu":
        yield f"hidden_act = {fields.hidden_act!r}; only silu (SwiGLU) is supported"
    if family.table.expert_rows:
        yield from _problems_of_experts(fields, family)
    yield from _problems_of_rotary(fields, family)
    if family.table.uses("kv_rank"):
        yield from _problems_of_latent_attention(fields)
    yield from _problems_of_windows(fields, family)


def _problems_of_values(fields: HfConfig, family: Family) -> Iterator[str]:
    for field, only in family.computed.items():
        if (value := getattr(fields, field)) != only:
            yield (
                f"{field} = {value!r}; a {fields.model_type} is computed with {only!r} alone: set "
                f"it so if the model was trained so, or {_BY_TRANSFORMERS}"
            )
    for field, why in family.refused.items():
        if getattr(fields, field):
            yield f"{field} in a {fields.model_type} {why}"


def _problems_of_experts(fields: HfConfig, family: Family) -> Iterator[str]:
    kind, number, dense = fields.model_type, fields.routed_experts, fields.first_k_dense_replace
    if not number:
        yield (
            f"{kind} is a mixture of experts, and none of num_local_experts, num_experts and "
            "n_routed_experts says how many; set it as the model's publisher does"
        )
    every = (fields.decoder_sparse_step, fields.moe_layer_freq)
    if fields.mlp_only_layers or any(step not in (None, 1) for step in every):
        yield "dense layers among mixture-of-experts layers are not mapped"
    if family.dense_table.rows and (dense or 0) >= fields.num_hidden_layers:
        yield (
            f"first_k_dense_replace = {dense} leaves none of {fields.num_hidden_layers} layers "
            f"with experts, which a {kind} has; lower it"
        )
    renormalises = not family.norm_topk_prob or fields.norm_topk_prob
    if fields.num_experts_per_tok == 1 and renormalises and not family.sigmoid_router:
        yield (
            "num_experts_per_tok = 1, whose expert Megatron-core does not weight by a softmax over "
            "the chosen ones; choose parallel.engine: fsdp"
        )
    if family.sigmoid_router:
        yield from _problems_of_sigmoid_routers(fields, number)


def _problems_of_sigmoid_routers(fields: HfConfig, num_experts: int) -> Iterator[str]:
    for name, only in _SIGMOID_ROUTER.items():
        if (value := getattr(fields, name)) != only:
            yield (
                f"{name} = {value!r}; a {fields.model_type} is computed with {only!r}, and vLLM "
                f"reads this field: set it to {only!r} if the model was trained so"
            )
    if fields.num_experts_per_tok == 1:
        yield (
            "num_experts_per_tok = 1: Megatron-core takes the score of a token's only expert as it "
            "is, and others divide it by itself; choose parallel.engine: fsdp"
        )
    groups, chosen = fields.n_group or 1, fields.topk_group or 1
    if num_experts % groups or chosen > groups:
        yield (
            f"n_group = {groups} and topk_group = {chosen} with {num_experts} experts; groups are "
            "of equal size, and a token chooses from at most all of them"
        )


def _problems_of_rotary(fields: HfConfig, family: Family) -> Iterator[str]:
    rope = fields.rope
    for kind, value in rope.items():
        if isinstance(value, Mapping):
            yield (
                f"rope_parameters.{kind}: rotary settings by kind of layer are not supported; "
                "give all layers the same"
            )
    rope_type = rope.get("rope_type", "default")
    known = family.rope_types or ("default", *SCALED_ROPE)
    if rope_type not in known:
        yield f"rope_type = {rope_type!r} is not supported; supported are {', '.join(known)}"
    elif family.rope_types:
        yield from _problems_of_yarn(rope)
    partial = rope.get("partial_rotary_factor", 1.0)
    if not family.partial_rotary and partial != 1.0:
        yield (
            f"partial_rotary_factor = {partial}; of a {fields.model_type} only whole heads are "
            "rotated here"
        )
    if partial != 1.0 and rope_type != "default":
        yield (
            f"rope_type = {rope_type!r} with partial_rotary_factor = {partial}: positions are not "
            "scaled where a part of each head is rotated; choose parallel.engine: fsdp"
        )
    if fields.head_size * partial % 2 or not 0 < partial <= 1:
        yield (
            f"partial_rotary_factor = {partial} of heads of {fields.head_size} elements; give a "
            "share above 0, at most 1, that is an even number of elements"
        )


def _problems_of_yarn(rope: Mapping[str, Any]) -> Iterator[str]:
    """What vLLM's own class of a family leaves out, or fails without."""
    for name in ("attention_factor", "mscale", "mscale_all_dim"):
        if rope.get(name) is not None:
            yield (
                f"rope_parameters.{name} = {rope[name]!r}, which vLLM does not read; "
                f"{_BY_TRANSFORMERS}"
            )
    for name in ("beta_fast", "beta_slow"):
        if rope.get(name) is None:
            yield f"rope_parameters.{name} is not there, and vLLM needs it; 32 and 1 are usual"


def _problems_of_latent_attention(fields: HfConfig) -> Iterator[str]:
    for name in ("kv_lora_rank", "qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"):
        if getattr(fields, name) is None:
            yield f"{name} = null; multi-latent attention needs this size"
    if fields.num_kv_heads != fields.num_attention_heads:
        yield (
            f"num_key_value_heads = {fields.num_kv_heads} differs from num_attention_heads = "
            f"{fields.num_attention_heads}; multi-latent attention has as many of both"
        )
    if fields.rope_interleave is False:
        yield "rope_interleave = False is not supported; vLLM rotates neighbours"
    if (kind := fields.rope.get("rope_type", "default")) not in ("default", "yarn"):
        yield f"rope_type = {kind!r} with multi-latent attention, which takes default and yarn"


def _problems_of_windows(fields: HfConfig, family: Family) -> Iterator[str]:
    window, slides = fields.sliding_window, fields.use_sliding_window
    if every := family.full_attention_every:
        layers = range(1, fields.num_hidden_layers + 1)
        kinds = ["sliding_attention" if n % every else "full_attention" for n in layers]
        if not window or fields.layer_types not in (None, kinds):
            yield (
                f"sliding_window = {window} and layer_types = {fields.layer_types}; every {every} "
                f"layers of a {fields.model_type} all but the last have a window: set one above 0, "
                "and leave layer_types out"
            )
        return
    if slides is None:
        slides = family.defaults.get("use_sliding_window", False)
    positions = fields.max_position_embeddings
    if window == 0 and slides:
        yield "sliding_window = 0; a window has a position at least, and null is for none"
    if window and slides and window < positions:
        yield (
            f"sliding_window = {window} is below max_position_embeddings = {positions}; windowed "
            f"attention is not supported. If no sequence will be longer than {window}, set "
            f"max_position_embeddings to {window} in config.json"
        )
    known = {"full_attention"} | ({"sliding_attention"} if window and slides else set())
    for kind in fields.layer_types or ():
        if kind not in known:
            yield f"layer_types has {kind!r}; only full_attention is supported"
