"""Aggregate losses of tokens to one number, the same for any split over ranks and micro-batches.

Normalisers are counts over the whole batch, known before the first micro-batch runs; micro-batches
and ranks then only add up.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hpc.algorithms.lazy import torch

Mode = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]


@dataclass(frozen=True)
class Aggregation:
    """How losses of shape (B, T) add up to a scalar.

    token-mean                sum over all tokens / tokens of the batch
    token-sum                 sum over all tokens
    seq-mean-token-sum        mean over sequences of the sum over their tokens
    seq-mean-token-mean       mean over sequences of the mean over their tokens
    seq-mean-token-sum-norm   the sum over tokens / `scale`, mean over sequences (Dr.GRPO,
                              arXiv 2503.20783)

    Sequences without a valid token do not count. Source: verl's `agg_loss` where it is given no
    count of sequences; its trainers count all of a mini-batch.
    """

    mode: Mode
    num_tokens: int
    """Valid tokens of the whole batch."""
    num_sequences: int
    """Sequences of the whole batch that have a valid token."""
    scale: float = 1.0
    """Horizon of seq-mean-token-sum-norm."""

    def __call__(self, losses: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        """This part's share of the aggregate; the shares of all parts add up to it."""
        valid = torch.where(mask.bool(), losses, 0)
        if self.mode == "token-mean":
            return valid.sum() / max(self.num_tokens, 1)
        if self.mode == "token-sum":
            return valid.sum()
        per_sequence = valid.sum(-1)
        if self.mode == "seq-mean-token-mean":
            per_sequence = per_sequence / mask.sum(-1).clamp(min=1)
        elif self.mode == "seq-mean-token-sum-norm":
            per_sequence = per_sequence / self.scale
        return per_sequence.sum() / max(self.num_sequences, 1)
