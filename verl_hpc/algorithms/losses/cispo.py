"""CISPO: clipped importance weights instead of clipped updates (arXiv 2506.13585, equation 4)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import Fraction, NonNegativeFinite


class Cispo(PolicyLoss):
    """REINFORCE, weighed by the clipped ratio; every token keeps a gradient."""

    name: Literal["cispo"] = "cispo"
    clip_low: Fraction = 1.0
    """How far below 1 the weight is clipped; 1 does not, as the paper."""
    clip_high: NonNegativeFinite = 0.28
    """How far above 1 it is clipped."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-w A log_prob, w = clip(r, 1 - low, 1 + high) without gradient; the log-ratio is clamped
        to +-20.

        Metrics: pg_clipfrac, ppo_kl.
        """
        log_ratio = tokens.log_ratio.detach()
        ratio = log_ratio.exp()
        weight = ratio.clamp(1 - self.clip_low, 1 + self.clip_high)
        return -weight * tokens.advantages * tokens.log_probs, {
            "pg_clipfrac": masked_sum((ratio != weight).to(ratio), tokens.mask),
            "ppo_kl": masked_sum(-log_ratio, tokens.mask),
        }
