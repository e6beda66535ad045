"""GSPO: the ratio of whole sequences (arXiv 2507.18071, equations 5 to 7)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import Fraction, NonNegativeFinite

_LARGEST_LOG_RATIO = 10.0


class Gspo(PolicyLoss):
    """The geometric mean of a sequence's ratios, clipped."""

    name: Literal["gspo"] = "gspo"
    clip_low: Fraction = 3e-4
    """How far below 1 the ratio is clipped; the paper's, for ratios of sequences move far less than
    those of tokens."""
    clip_high: NonNegativeFinite = 4e-4
    """How far above 1 it is clipped."""
    aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """max(-A s, -A clip(s, 1 - low, 1 + high)), s = exp(mean log-ratio) of the sequence, whose
        gradient goes to each of its tokens alike; the log-ratio is at most 10.

        Metrics: pg_clipfrac, ppo_kl.
        """
        mask = tokens.mask.bool()
        log_ratio = torch.where(mask, tokens.log_probs - tokens.old_log_probs, 0)
        mean = log_ratio.sum(-1, keepdim=True) / mask.sum(-1, keepdim=True).clamp(min=1)
        of_token = tokens.log_probs - tokens.log_probs.detach() + mean.detach()
        ratio = of_token.clamp(max=_LARGEST_LOG_RATIO).exp()
        losses, is_clipped = tokens.clipped(ratio, self.clip_low, self.clip_high)
        return losses, {
            "pg_clipfrac": masked_sum(is_clipped, tokens.mask),
            "ppo_kl": -log_ratio.detach().sum(),
        }
