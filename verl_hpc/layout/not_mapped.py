"""Known model families that cannot be trained here, and what each would need."""

from __future__ import annotations

from collections.abc import Mapping

_MLA = (
    "multi-latent attention (low-rank queries, keys and values; vLLM derives further weights from "
    "kv_b_proj at load, which a write in place would leave as they were)"
)
_SIGMOID = (
    "a sigmoid router with expert groups and a correction bias that is no parameter, shared experts"
)
_VISION = (
    "images in prompts: a processor's column in the data, a vision tower beside the decoder, "
    "positions of three axes in packed rows, and vLLM's multimodal inputs (docs/experts.md, "
    "Vision-language models)"
)
_LINEAR_ATTENTION = (
    "layers of two kinds: Megatron-core 0.16's gated delta net refuses packed rows, and layer "
    "tables have one kind of layer; also shared experts with a gate and partial rotary embeddings"
)

_GPT2 = (
    "learned positions in place of rotary embeddings, LayerNorm with biases in place of RMSNorm, "
    "biases of all linear layers, GELU without a gate, and"
)
_GEMMA = (
    "embeddings that are multiplied by the root of the hidden size, RMSNorm that adds one to its "
    "weights, and GELU in the MLP's gate"
)
_FOUR_NORMS = "norms behind attention and MLP, sliding windows in some layers"

NOT_MAPPED: Mapping[str, str] = {
    "gpt2": f"{_GPT2} weights that its checkpoint has transposed (Conv1D)",
    "gpt_bigcode": f"{_GPT2} one key/value head in a fused projection",
    "gpt_neox": "partial rotary embeddings, LayerNorm with biases, attention and MLP side by side, "
    "and GELU without a gate",
    "qwen": "its publisher's own Python code, which is not run here (transformers has no such "
    "model), a fused projection with biases (attn.c_attn), and attention scaled by the logarithm "
    "of the length; Qwen2 and newer are mapped",
    "phi": "partial rotary embeddings, LayerNorm with biases, attention and MLP side by side",
    "phimoe": "LayerNorm with biases, a router of its own (sparsemixer), and experts' biases",
    "deepseek_v2": f"{_MLA}, shared experts, and dense layers before those of experts",
    "deepseek_v3": f"{_MLA}, {_SIGMOID}, and dense layers before those of experts",
    "deepseek_v32": f"{_MLA}, sparse attention with an indexer, {_SIGMOID}",
    "kimi_k2": f"{_MLA}, {_SIGMOID}, and dense layers before those of experts",
    "glm4_moe": f"{_SIGMOID}, dense layers before those of experts, partial rotary embeddings",
    "qwen2_moe": "a shared expert with a gate",
    "qwen3_next": _LINEAR_ATTENTION,
    "qwen3_5": f"{_LINEAR_ATTENTION}; {_VISION}",
    "qwen3_5_moe": f"{_LINEAR_ATTENTION}; {_VISION}",
    "gemma": _GEMMA,
    "gemma2": f"{_GEMMA}, {_FOUR_NORMS}, and soft caps on attention and on logits",
    "gemma3_text": f"{_GEMMA}, {_FOUR_NORMS}, whose rotary embeddings differ",
    "gemma3": f"{_GEMMA}, {_FOUR_NORMS}, whose rotary embeddings differ; {_VISION}",
    "gpt_oss": "attention sinks and sliding windows in every second layer, biases of experts and "
    "of the router, clamped SwiGLU with interleaved gate and up rows, and MXFP4 checkpoints",
    "qwen2_vl": _VISION,
    "qwen2_5_vl": _VISION,
    "qwen3_vl": f"{_VISION}; visual features are added in several decoder layers (deepstack)",
    "qwen3_vl_moe": f"{_VISION}; visual features are added in several decoder layers (deepstack)",
}
"""Missing features of unsupported families, by `model_type` of a `config.json`."""
