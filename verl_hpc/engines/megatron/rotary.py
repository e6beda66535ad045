"""Rotary frequencies of scaled positions, as transformers computes them, for both backends."""

from __future__ import annotations

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from verl_hpc.layout.architecture import Architecture


def rotary_scaling(arch: Architecture) -> tuple[torch.Tensor, float] | None:
    """Return (head_size / 2,) float32 inverse frequencies and the factor of sines and cosines; None
    if positions are not scaled.

    llama3 is Llama 3.1's scaling, linear divides all frequencies (arXiv 2306.15595), yarn divides
    those of long waves and also scales attention (arXiv 2309.00071).
    """
    if arch.rope_scaling is None:
        return None
    config = LlamaConfig(
        hidden_size=arch.hidden_size,
        num_attention_heads=arch.num_heads,
        head_dim=arch.head_size,
        max_position_embeddings=arch.max_positions,
        rope_parameters={**arch.rope_scaling, "rope_theta": arch.rope_theta},
    )
    scale = ROPE_INIT_FUNCTIONS[arch.rope_scaling["rope_type"]]
    frequencies, factor = scale(config, torch.device("cpu"))
    return frequencies, float(factor)


def softmax_scale(arch: Architecture) -> float | None:
    """Return attention's scale with the factor of `rotary_scaling` on both queries and keys; None
    for the usual scale."""
    scaling = rotary_scaling(arch)
    if scaling is None or scaling[1] == 1.0:
        return None
    return float(scaling[1] ** 2 * arch.head_size**-0.5)
