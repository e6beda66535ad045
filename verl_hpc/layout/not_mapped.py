"""Model families that train by the names of their tensors, what a layer table of known ones would
need, and families that cannot be trained here at all."""

from __future__ import annotations

from collections.abc import Mapping

_VISION = "images in prompts of a family whose image tokens were not compared with vLLM's yet"
_LINEAR_ATTENTION = (
    "layers of two kinds: Megatron-core 0.16's gated delta net refuses packed rows, and layer "
    "tables have one kind of attention"
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

_QWEN3_5 = ("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen3_5_text")
_SPARSE = ("deepseek_v32", "glm_moe_dsa")

NOT_MAPPED: Mapping[str, str] = {
    "gpt2": f"{_GPT2} weights that its checkpoint has transposed (Conv1D)",
    "gpt_neox": "LayerNorm with biases, attention and MLP side by side, and GELU without a gate",
    "phi": "LayerNorm with biases, attention and MLP side by side",
    "deepseek_v2": "a softmax router with groups and without a bias",
    **dict.fromkeys(("qwen3_next", *_QWEN3_5), _LINEAR_ATTENTION),
    **dict.fromkeys(_SPARSE, "sparse attention, whose tokens an indexer chooses"),
    "gemma": _GEMMA,
    "gemma2": f"{_GEMMA}, {_FOUR_NORMS}, and soft caps on attention and on logits",
    "gemma3_text": f"{_GEMMA}, {_FOUR_NORMS}, whose rotary embeddings differ",
}
"""What a layer table of a family would need, by `model_type` of a `config.json`."""

_VLLM = (
    "apertus arcee bloom cohere cohere2 deepseek_v2 deepseek_v3 dots1 falcon_h1 falcon_mamba "
    "gemma gemma2 gemma3_text glm glm4 glm4_moe gpt2 gpt_neox gpt_oss gptj granite granitemoe "
    "granitemoehybrid hunyuan_v1_dense hy_v3 kimi_k2 llama4_text mamba mamba2 minimax_m2 mixtral "
    "nemotron nemotron_h olmo olmo2 olmo3 olmoe opt phi qwen2_moe qwen3_5_moe_text qwen3_5_text "
    "qwen3_moe qwen3_next seed_oss smollm3 stablelm starcoder2"
)
WITH_IMAGES = ("gemma3", "qwen2_5_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl")
"""Families whose prompts may have images."""

BY_NAME: Mapping[str, str] = dict.fromkeys((*_VLLM.split(), *WITH_IMAGES), "vllm") | dict.fromkeys(
    ("ernie4_5_moe", "exaone4", "mpt", *_SPARSE), "hf"
)
"""Families that were trained with fully_shard in tests, each with the rollout engine that computes
as transformers does; on CPUs vLLM has no kernels for minimax_m2, mamba, falcon_mamba and the
experts of nemotron_h."""

_OF_GATES = {
    "attn_output_gate": (True,),
    "output_gate_type": ("silu", "swish"),
    "layer_scale": (False,),
    "norm_topk_prob": (True,),
}
_OF_SIGMOIDS = {"scoring_func": ("sigmoid",), "topk_method": ("noaux_tc",), "moe_layer_freq": (1,)}
_OF_LATENTS = _OF_SIGMOIDS | {"rope_interleave": (True,)}
COMPUTED: Mapping[str, Mapping[str, tuple[object, ...]]] = {
    **dict.fromkeys(_QWEN3_5, _OF_GATES),
    "qwen3_next": {"attn_output_gate": (True,), "layer_scale": (False,)},
    **dict.fromkeys(("deepseek_v3", "kimi_k2"), _OF_SIGMOIDS),
    "minimax_m2": {"scoring_func": ("sigmoid",), "use_routing_bias": (True,)},
    "hy_v3": {"route_norm": (True,), "qk_norm": (True,)},
    "glm_moe_dsa": _OF_LATENTS | {"indexer_rope_interleave": (True,)},
    "deepseek_v32": _OF_LATENTS | {"indexer_rope_interleave": (False,)},
}
"""Fields of `config.json` that transformers does not read, by `model_type`, with the values that it
computes; vLLM, or the publisher's own code, would compute others."""

WHOLE_SCORES = ("bloom", "gemma2", "gpt_oss", "gptj", "mpt")
"""Families whose attention transformers computes without a kernel, with all scores in memory."""

REFUSED: Mapping[str, str] = {
    "qwen": "its publisher's own Python code, which is not run here (transformers has no such "
    "model), a fused projection with biases (attn.c_attn), and attention scaled by the logarithm "
    "of the length; Qwen2 and newer are supported",
    "rwkv": "weights that stay as they are: transformers' model divides them in place where it is "
    "not trained",
    "phimoe": "a router without random numbers in training (sparsemixer draws them)",
    "qwen2_vl": _VISION,
    "qwen3_vl_moe": _VISION,
}
"""What families that no engine trains would need, by `model_type` of a `config.json`."""
