"""GMPO: the geometric mean of a sequence's clipped ratios (arXiv 2507.20673, equation 4)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import PositiveFinite


class Gmpo(PolicyLoss):
    """GSPO with the ratios of tokens clipped before they are averaged."""

    name: Literal["gmpo"] = "gmpo"
    clip_low: PositiveFinite = 0.4
    """How far below 0 the log-ratio of a token is clipped, where the advantage is negative; the
    paper's."""
    clip_high: PositiveFinite = 0.4
    """How far above 0 it is clipped, where the advantage is positive."""
    aggregation: ClassVar[Mode] = "seq-mean-token-mean"

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-mean(A) exp(mean log-ratio) on every token of a sequence; a log-ratio is clipped to
        [-low, high] on the side that the advantage pushes it to.

        Metrics: pg_clipfrac (advantage above 0), pg_clipfrac_lower (below), ppo_kl.
        """
        mask, advantages = tokens.mask.bool(), tokens.advantages
        log_ratio = torch.where(mask, tokens.log_probs - tokens.old_log_probs, 0)
        near, sign = log_ratio.clamp(-self.clip_low, self.clip_high), advantages.sign()
        bounded = sign * torch.minimum(sign * log_ratio, sign * near)
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        ratio = (bounded.sum(-1, keepdim=True) / count).exp()
        mean = torch.where(mask, advantages, 0).sum(-1, keepdim=True) / count
        clipped = (log_ratio != near).to(log_ratio)
        return (-mean * ratio).expand_as(log_ratio), {
            "pg_clipfrac": masked_sum(clipped * (advantages > 0), tokens.mask),
            "pg_clipfrac_lower": masked_sum(clipped * (advantages < 0), tokens.mask),
            "ppo_kl": -log_ratio.detach().sum(),
        }

    def weighted(
        self, losses: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Times the geometric mean of a sequence's weights, as its ratio is one (verl)."""
        count = mask.sum(-1, keepdim=True).clamp(min=1)
        logs = torch.where(mask.bool(), weights.log(), 0)
        return losses * (logs.sum(-1, keepdim=True) / count).exp()
