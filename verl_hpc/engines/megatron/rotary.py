"""Rotary embeddings of packed rows, and how positions are scaled."""

from __future__ import annotations

from typing import Any

import torch
from megatron.core.models.common.embeddings.rotary_pos_embedding import RotaryEmbedding
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from verl_hpc.layout.architecture import Architecture


class PackedRotaryEmbedding(RotaryEmbedding):
    """Rotary angles for the positions of a packed row, instead of 0, 1, 2, ..."""

    positions: torch.Tensor
    """Positions, (1, T), set before each forward pass."""

    def get_rotary_seq_len(self, *_: Any, **__: Any) -> int:
        return 0

    def forward(self, *_: Any, **__: Any) -> torch.Tensor:
        """Return (T, 1, 1, size) angles."""
        frequencies: torch.Tensor = self.inv_freq.to(self.positions.device)
        angles = torch.outer(self.positions[0].to(frequencies.dtype), frequencies)
        both = (
            angles.repeat_interleave(2, dim=-1)
            if self.rotary_interleaved
            else torch.cat((angles, angles), dim=-1)
        )
        return both[:, None, None, :]


def rotary_scaling(arch: Architecture) -> tuple[torch.Tensor, float] | None:
    """Return (rotated size / 2,) float32 inverse frequencies and the factor of sines and cosines;
    None if positions are not scaled.

    llama3 is Llama 3.1's scaling, linear divides all frequencies (arXiv 2306.15595), yarn divides
    those of long waves and also scales attention (arXiv 2309.00071).
    """
    if arch.rope_scaling is None:
        return None
    config = LlamaConfig(
        hidden_size=arch.hidden_size,
        num_attention_heads=arch.num_heads,
        head_dim=arch.rotated_size,
        max_position_embeddings=arch.max_positions,
        rope_parameters={**arch.rope_scaling, "rope_theta": arch.rope_theta},
    )
    scale = ROPE_INIT_FUNCTIONS[arch.rope_scaling["rope_type"]]
    frequencies, factor = scale(config, torch.device("cpu"))
    return frequencies, float(factor)


def softmax_scale(arch: Architecture) -> float | None:
    """Return attention's scale with the factor of `rotary_scaling` on both queries and keys; None
    for the usual scale, and for latent attention, which computes its own."""
    scaling = rotary_scaling(arch)
    if arch.latent is not None or scaling is None or scaling[1] == 1.0:
        return None
    return float(scaling[1] ** 2 * arch.head_size**-0.5)
