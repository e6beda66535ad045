"""PPO's clipped policy loss with dual clip."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import Fraction, NonNegativeFinite, Number


class PpoClip(PolicyLoss):
    """The ratio of new to old probability times the advantage, no better than at the clip."""

    name: Literal["ppo_clip"] = "ppo_clip"
    clip_low: Fraction = 0.2
    """How far below 1 the ratio of new to old probability is clipped (arXiv 1707.06347, equation
    7)."""
    clip_high: NonNegativeFinite = 0.2
    """How far above 1 it is clipped; 0.28 is DAPO's clip-higher (arXiv 2503.14476)."""
    dual_clip: Annotated[Number, Field(gt=1.0, le=1e9)] | None = 3.0
    """Bound on the ratio where the advantage is negative (arXiv 1912.09729, equation 5); null is
    off."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """r = exp(log_prob - old), the log-ratio clamped to +-20;
        max(-A r, -A clip(r, 1 - low, 1 + high)), and where A < 0 at most -A c.

        Metrics: pg_clipfrac, pg_clipfrac_lower, ppo_kl.
        """
        log_ratio = tokens.log_ratio
        losses, is_clipped = tokens.clipped(log_ratio.exp(), self.clip_low, self.clip_high)
        metrics = {
            "pg_clipfrac": masked_sum(is_clipped, tokens.mask),
            "ppo_kl": masked_sum(-log_ratio, tokens.mask),
            "pg_clipfrac_lower": losses.new_zeros(()),
        }
        if self.dual_clip is not None:
            bound, negative = -tokens.advantages * self.dual_clip, tokens.advantages < 0
            cut = (negative & (losses > bound)).to(losses)
            metrics["pg_clipfrac_lower"] = masked_sum(cut, tokens.mask)
            losses = torch.where(negative, torch.minimum(losses, bound), losses)
        return losses, {name: value.detach() for name, value in metrics.items()}
