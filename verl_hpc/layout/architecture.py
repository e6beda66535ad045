"""What a decoder is made of: sizes read from a Hugging Face `config.json`, and its tensors.

Families: Llama, Mistral, Qwen2, Qwen3 (dense) and Mixtral, Qwen3-MoE (mixture of experts).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.errors import ModelError
from verl_hpc.layout.shard_map import TensorSpec

FAMILIES = ("llama", "mistral", "qwen2", "qwen3", "mixtral", "qwen3_moe")


@dataclass(frozen=True)
class ExpertNames:
    """How a mixture-of-experts family spells its tensors, below `model.layers.N.`."""

    router: str
    experts: str
    gate: str
    up: str
    down: str


EXPERT_NAMES: Mapping[str, ExpertNames] = {
    "mixtral": ExpertNames(
        "block_sparse_moe.gate.weight", "block_sparse_moe.experts", "w1", "w3", "w2"
    ),
    "qwen3_moe": ExpertNames("mlp.gate.weight", "mlp.experts", "gate_proj", "up_proj", "down_proj"),
}


@dataclass(frozen=True)
class Architecture:
    """Sizes of a decoder-only transformer with RMSNorm, rotary embeddings and SwiGLU."""

    family: str
    num_layers: int
    hidden_size: int
    ffn_size: int
    """Width of one SwiGLU branch: of the MLP, or of one expert."""
    num_heads: int
    num_kv_heads: int
    head_size: int
    vocab_size: int
    tied_embeddings: bool
    qkv_bias: bool = False
    qk_norm: bool = False
    norm_epsilon: float = 1e-5
    rope_theta: float = 10000.0
    rope_scaling: Mapping[str, Any] | None = None
    max_positions: int = 2048
    num_experts: int = 0
    experts_per_token: int = 0
    renormalise_router: bool = True
    dtype: str = "bfloat16"

    @property
    def expert_names(self) -> ExpertNames:
        return EXPERT_NAMES[self.family]

    @property
    def is_moe(self) -> bool:
        return self.num_experts > 0

    def tensors(self, dtype: str | None = None) -> dict[str, TensorSpec]:
        """Logical tensors by Hugging Face name, in checkpoint order; all of `dtype`.

        Tied embeddings are one tensor, `model.embed_tokens.weight`.
        """
        kind = dtype or self.dtype
        return {name: TensorSpec(shape, kind) for name, shape in self._shapes()}

    @property
    def num_parameters(self) -> int:
        return sum(spec.num_bytes for spec in self.tensors("uint8").values())

    def _shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        hidden = self.hidden_size
        yield "model.embed_tokens.weight", (self.vocab_size, hidden)
        for layer in range(self.num_layers):
            prefix = f"model.layers.{layer}"
            yield f"{prefix}.input_layernorm.weight", (hidden,)
            yield from self._attention_shapes(f"{prefix}.self_attn")
            yield f"{prefix}.post_attention_layernorm.weight", (hidden,)
            if self.is_moe:
                yield from self._expert_shapes(prefix)
            else:
                yield f"{prefix}.mlp.gate_proj.weight", (self.ffn_size, hidden)
                yield f"{prefix}.mlp.up_proj.weight", (self.ffn_size, hidden)
                yield f"{prefix}.mlp.down_proj.weight", (hidden, self.ffn_size)
        yield "model.norm.weight", (hidden,)
        if not self.tied_embeddings:
            yield "lm_head.weight", (self.vocab_size, hidden)

    def _attention_shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        q_size = self.num_heads * self.head_size
        kv_size = self.num_kv_heads * self.head_size
        for name, size in (("q_proj", q_size), ("k_proj", kv_size), ("v_proj", kv_size)):
            yield f"{prefix}.{name}.weight", (size, self.hidden_size)
            if self.qkv_bias:
                yield f"{prefix}.{name}.bias", (size,)
        if self.qk_norm:
            yield f"{prefix}.q_norm.weight", (self.head_size,)
            yield f"{prefix}.k_norm.weight", (self.head_size,)
        yield f"{prefix}.o_proj.weight", (self.hidden_size, q_size)

    def _expert_shapes(self, prefix: str) -> Iterator[tuple[str, tuple[int, ...]]]:
        names = self.expert_names
        yield f"{prefix}.{names.router}", (self.num_experts, self.hidden_size)
        for expert in range(self.num_experts):
            base = f"{prefix}.{names.experts}.{expert}"
            yield f"{base}.{names.gate}.weight", (self.ffn_size, self.hidden_size)
            yield f"{base}.{names.up}.weight", (self.ffn_size, self.hidden_size)
            yield f"{base}.{names.down}.weight", (self.hidden_size, self.ffn_size)


def read_architecture(path: str | Path) -> Architecture:
    """Read a model directory, or a `config.json` itself.

    Raises:
        ModelError: nothing there, unreadable, or of a family or variant that is not mapped.
    """
    source = Path(path)
    file = source / "config.json" if source.is_dir() else source
    if not file.is_file():
        raise ModelError(
            f"model: no config.json at {source}; give a Hugging Face model directory "
            "or the path of its config.json"
        )
    try:
        config = json.loads(file.read_text())
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise ModelError(f"model: {file} is not JSON ({error}); is the download whole?") from error
    return architecture_from(config, str(file))


def architecture_from(config: Mapping[str, Any], origin: str = "config") -> Architecture:
    """Turn the contents of a `config.json` into an `Architecture`.

    Raises:
        ModelError: the family is not mapped, a field is missing, or a variant is not supported.
    """
    family = config.get("model_type")
    if family not in FAMILIES:
        raise ModelError(
            f"{origin}: model_type = {family!r} is not mapped; mapped are {', '.join(FAMILIES)}"
        )
    missing = [
        field
        for field in (
            "num_hidden_layers",
            "hidden_size",
            "intermediate_size",
            "num_attention_heads",
            "vocab_size",
        )
        if field not in config
    ]
    if missing:
        raise ModelError(f"{origin}: lacks {', '.join(missing)}")
    _refuse_variants(config, origin)
    heads = config["num_attention_heads"]
    rope = _rope(config)
    moe = family in EXPERT_NAMES
    return Architecture(
        family=family,
        num_layers=config["num_hidden_layers"],
        hidden_size=config["hidden_size"],
        ffn_size=config.get("moe_intermediate_size", config["intermediate_size"])
        if moe
        else config["intermediate_size"],
        num_heads=heads,
        num_kv_heads=config.get("num_key_value_heads") or heads,
        head_size=config.get("head_dim") or config["hidden_size"] // heads,
        vocab_size=config["vocab_size"],
        tied_embeddings=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=family == "qwen2",
        qk_norm=family in ("qwen3", "qwen3_moe"),
        norm_epsilon=config.get("rms_norm_eps", 1e-6),
        rope_theta=rope.get("rope_theta", 10000.0),
        rope_scaling=rope if rope.get("rope_type", "default") != "default" else None,
        max_positions=config.get("max_position_embeddings", 2048),
        num_experts=config.get("num_local_experts", config.get("num_experts", 0)) if moe else 0,
        experts_per_token=config.get("num_experts_per_tok", 0) if moe else 0,
        renormalise_router=family == "mixtral" or bool(config.get("norm_topk_prob", False)),
        dtype=config.get("dtype") or config.get("torch_dtype") or "float32",
    )


def _rope(config: Mapping[str, Any]) -> dict[str, Any]:
    """Rotary settings, from today's `rope_parameters` or the older pair of fields."""
    rope = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    if "type" in rope:
        rope.setdefault("rope_type", rope.pop("type"))
    rope.setdefault("rope_theta", config.get("rope_theta", 10000.0))
    return rope


def _refuse_variants(config: Mapping[str, Any], origin: str) -> None:
    """Variants that would otherwise be computed wrongly without a word."""
    refused = {
        "attention_bias": bool(config.get("attention_bias"))
        and config["model_type"] not in ("qwen2",),
        "mlp_bias": bool(config.get("mlp_bias")),
        "quantization_config": bool(config.get("quantization_config")),
    }
    for field, present in refused.items():
        if present:
            raise ModelError(f"{origin}: {field} = {config[field]!r} is not supported")
    activation = config.get("hidden_act", "silu")
    if activation != "silu":
        raise ModelError(f"{origin}: hidden_act = {activation!r}; only silu (SwiGLU) is supported")
    rope_type = _rope(config).get("rope_type", "default")
    if rope_type not in ("default", "llama3"):
        raise ModelError(
            f"{origin}: rope_type = {rope_type!r} is not supported; supported are default, llama3"
        )
    if config.get("mlp_only_layers") or config.get("decoder_sparse_step", 1) != 1:
        raise ModelError(f"{origin}: dense layers among mixture-of-experts layers are not mapped")
    window = config.get("sliding_window")
    if window and config.get("use_sliding_window", config["model_type"] in ("mistral", "mixtral")):
        positions = config.get("max_position_embeddings", 0)
        if window < positions:
            raise ModelError(
                f"{origin}: sliding_window = {window} is below max_position_embeddings = "
                f"{positions}; windowed attention is not supported. If no sequence will be longer "
                f"than {window}, set max_position_embeddings to {window} in config.json"
            )
