"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.2; Dr.GRPO, arXiv 2503.20783)."""

from __future__ import annotations

import torch

EPSILON = 1e-6


def grpo(scores: torch.Tensor, groups: torch.Tensor, normalise_by_std: bool = True) -> torch.Tensor:
    """Advantage of every response, (B,): its score against those of the same prompt.

    (s - mean) / (std + 1e-6), std unbiased; without `normalise_by_std` (Dr.GRPO) s - mean. A group
    of one has mean 0 and std 1. Every token of a response gets its response's advantage; leaves
    out any value function.

    Args:
        scores: (B,) scores of all responses of the batch.
        groups: (B,) int64, which prompt a response answers.
    """
    _, index, counts = torch.unique(groups, return_inverse=True, return_counts=True)
    sums = scores.new_zeros(len(counts)).index_add(0, index, scores)
    several = counts > 1
    mean = torch.where(several, sums / counts, 0)
    centred = scores - mean[index]
    if not normalise_by_std:
        return centred
    squares = scores.new_zeros(len(counts)).index_add(0, index, centred**2)
    std = torch.where(several, (squares / (counts - 1).clamp(min=1)).sqrt(), 1)
    return centred / (std[index] + EPSILON)
