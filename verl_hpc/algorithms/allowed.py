"""Sets of tokens that a constraint allows, as bits."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch


def unpacked(allowed: torch.Tensor, vocabulary: int) -> torch.Tensor:
    """(T, bytes) uint8, a bit a token and the lowest first, as (T, vocabulary) bool; a row without
    any bit allows all."""
    places = torch.arange(8, dtype=torch.uint8, device=allowed.device)
    bits = (allowed[..., None] >> places) & 1
    is_allowed = bits.flatten(-2)[..., :vocabulary].bool()
    return is_allowed | ~is_allowed.any(-1, keepdim=True)
