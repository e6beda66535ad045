"""Validation of a Hugging Face `config.json`: types, ranges, and sizes that fit each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from verl_hpc.config.explain import explain
from verl_hpc.errors import ModelError
from verl_hpc.layout.families import FAMILIES
from verl_hpc.section import Integer, Number

Layers = Annotated[Integer, Field(ge=1, le=10_000)]
Size = Annotated[Integer, Field(ge=1, le=2**24)]
Count = Annotated[Integer, Field(ge=0, le=2**16)]
Positions = Annotated[Integer, Field(ge=1, le=2**31 - 1)]
Window = Annotated[Integer, Field(ge=0, le=2**31 - 1)]
Epsilon = Annotated[Number, Field(gt=0.0, le=1.0)]
Positive = Annotated[Number, Field(gt=0.0, le=1e15)]
Flag = Annotated[bool, Field(strict=True)]


class Llama3Rope(BaseModel):
    """Rotary settings of rope_type llama3; all are needed."""

    factor: Positive
    low_freq_factor: Positive
    high_freq_factor: Positive
    original_max_position_embeddings: Positions


class LinearRope(BaseModel):
    """Rotary settings of rope_type linear."""

    factor: Positive


class YarnRope(BaseModel):
    """Rotary settings of rope_type yarn; the first two are needed."""

    factor: Positive
    original_max_position_embeddings: Positions
    attention_factor: Positive | None = None
    beta_fast: Positive | None = None
    beta_slow: Positive | None = None
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    truncate: Flag = True


SCALED_ROPE: Mapping[str, type[BaseModel]] = {
    "llama3": Llama3Rope,
    "linear": LinearRope,
    "yarn": YarnRope,
}
"""Ways to scale positions, by rope_type."""


class HfConfig(BaseModel):
    """The fields that are read here; others, such as most token ids, are left to transformers.

    A nullable field means its default then, as in transformers.
    """

    model_config = ConfigDict(extra="ignore", frozen=True)

    model_type: str
    num_hidden_layers: Layers
    hidden_size: Size
    intermediate_size: Size
    num_attention_heads: Size
    num_key_value_heads: Size | None = None
    head_dim: Size | None = None
    vocab_size: Size
    tie_word_embeddings: Flag | None = None
    attention_bias: Flag | None = None
    qkv_bias: Flag | None = None
    use_qk_norm: Flag | None = None
    mlp_bias: Flag | None = None
    use_bias: Flag | None = None
    hidden_act: str = "silu"
    quantization_config: dict[str, Any] | None = None
    rms_norm_eps: Epsilon = 1e-6
    rope_theta: Positive = 10000.0
    rope_scaling: dict[str, Any] | None = None
    rope_parameters: dict[str, Any] | None = None
    partial_rotary_factor: Positive | None = None
    max_position_embeddings: Positions = 2048
    layer_types: list[str] | None = None
    sliding_window: Window | None = None
    swiglu_alpha: Positive = 1.702
    swiglu_limit: Positive = 7.0
    use_sliding_window: Flag | None = None
    moe_intermediate_size: Size | None = None
    num_local_experts: Count | None = None
    num_experts: Count | None = None
    n_routed_experts: Count | None = None
    num_experts_per_tok: Count | None = None
    n_shared_experts: Count | None = None
    shared_expert_intermediate_size: Size | None = None
    first_k_dense_replace: Count | None = None
    moe_layer_freq: Count | None = None
    n_group: Count | None = None
    topk_group: Count | None = None
    routed_scaling_factor: Positive | None = None
    scoring_func: str | None = None
    topk_method: str | None = None
    kv_lora_rank: Size | None = None
    q_lora_rank: Size | None = None
    qk_rope_head_dim: Size | None = None
    qk_nope_head_dim: Size | None = None
    v_head_dim: Size | None = None
    rope_interleave: Flag | None = None
    norm_topk_prob: Flag | None = None
    mlp_only_layers: list[Any] | None = None
    decoder_sparse_step: Count | None = None
    pad_token_id: Integer | None = None
    is_encoder_decoder: Flag | None = None
    return_dict: Flag | None = None
    dtype: Literal["float64", "float32", "float16", "bfloat16"] | None = None
    torch_dtype: Literal["float64", "float32", "float16", "bfloat16"] | None = None

    @property
    def num_kv_heads(self) -> int:
        return self.num_key_value_heads or self.num_attention_heads

    @property
    def head_size(self) -> int:
        """Elements of a head of queries and keys; DeepSeek's `head_dim` is their rotated part."""
        if self._is_latent:
            return (self.qk_nope_head_dim or 0) + (self.qk_rope_head_dim or 0)
        return self.head_dim or self.hidden_size // self.num_attention_heads

    @property
    def _is_latent(self) -> bool:
        family = FAMILIES.get(self.model_type)
        return family is not None and family.table.uses("kv_rank")

    @property
    def routed_experts(self) -> int:
        """Experts of a layer that its router chooses from."""
        return self.num_local_experts or self.num_experts or self.n_routed_experts or 0

    @property
    def rope(self) -> dict[str, Any]:
        """Rotary settings, from today's `rope_parameters` or the older pair of fields."""
        rope = dict(self.rope_parameters or self.rope_scaling or {})
        if "type" in rope:
            rope.setdefault("rope_type", rope.pop("type"))
        rope.setdefault("rope_theta", self.rope_theta)
        if self.partial_rotary_factor is not None:
            rope.setdefault("partial_rotary_factor", self.partial_rotary_factor)
        return rope

    @model_validator(mode="after")
    def _sizes_agree(self) -> HfConfig:
        heads = self.num_attention_heads
        if self.head_dim is None and not self._is_latent and self.hidden_size % heads:
            raise ValueError(
                f"num_attention_heads = {heads} does not divide hidden_size = {self.hidden_size}, "
                "and there is no head_dim"
            )
        if heads % self.num_kv_heads:
            raise ValueError(
                f"num_key_value_heads = {self.num_kv_heads} does not divide "
                f"num_attention_heads = {heads}"
            )
        if self.head_size % 2:
            raise ValueError(f"head_dim = {self.head_size} is odd; rotary embeddings need pairs")
        if (self.pad_token_id or 0) >= self.vocab_size:
            raise ValueError(
                f"pad_token_id = {self.pad_token_id} is not below vocab_size = {self.vocab_size}"
            )
        return self

    @model_validator(mode="after")
    def _rotary(self) -> HfConfig:
        _Rope.model_validate(self.rope)
        if settings := SCALED_ROPE.get(self.rope.get("rope_type", "default")):
            settings.model_validate(self.rope)
        return self


class _Rope(BaseModel):
    rope_theta: Positive
    rope_type: str = "default"
    partial_rotary_factor: Number = 1.0


def parse_hf_config(config: Mapping[str, Any], origin: str) -> HfConfig:
    """Check the contents of a `config.json`; what it leaves out is as in transformers.

    Raises:
        ModelError: a field of the wrong type or out of range, or sizes that contradict each other.
    """
    try:
        family = FAMILIES.get(str(config.get("model_type")))
        return HfConfig.model_validate({**(family.defaults if family else {}), **config})
    except ValidationError as error:
        raise ModelError(f"{origin}:\n{explain(error, HfConfig)}") from None
