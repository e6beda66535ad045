"""Rotary frequencies of scaled positions, as transformers has them, for either kind of layers."""

from __future__ import annotations

import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from verl_hpc.layout.architecture import Architecture


def rotary_scaling(arch: Architecture) -> tuple[torch.Tensor, float] | None:
    """(head_size / 2,) float32 inverse frequencies, and what sines and cosines are multiplied by;
    None where positions are not scaled.

    llama3 is that of Llama 3.1, linear divides all frequencies (arXiv 2306.15595), yarn those of
    long waves, and scales attention with it (arXiv 2309.00071).
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
    """Of attention, where queries and keys are both multiplied by the factor of `rotary_scaling`;
    None where it is as always."""
    scaling = rotary_scaling(arch)
    if scaling is None or scaling[1] == 1.0:
        return None
    return float(scaling[1] ** 2 * arch.head_size**-0.5)
