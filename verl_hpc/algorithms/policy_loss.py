"""PPO's clipped policy loss with dual clip."""

from __future__ import annotations

import torch

from verl_hpc.algorithms.log_ratio import bounded
from verl_hpc.algorithms.masked import masked_sum


def ppo_clip(
    old_log_probs: torch.Tensor,
    log_probs: torch.Tensor,
    advantages: torch.Tensor,
    mask: torch.Tensor,
    *,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    dual_clip: float | None = 3.0,
) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Losses of tokens, (B, T), and sums of metrics over the mask.

    r = exp(log_prob - old); max(-A r, -A clip(r, 1 - low, 1 + high)) (arXiv 1707.06347, equation
    7), and where A < 0 also at most -A c (dual clip, arXiv 1912.09729, equation 5). The log-ratio
    is clamped to +-20.

    Args:
        old_log_probs: (B, T) under the policy that the batch is measured against.
        log_probs: (B, T) under the policy being trained; differentiable.
        advantages: (B, T).
        mask: (B, T).
        clip_low, clip_high: how far the ratio may fall below, or rise above, 1.
        dual_clip: c above; None is off.

    Returns:
        Losses, and sums named pg_clipfrac, pg_clipfrac_lower (tokens) and ppo_kl.
    """
    log_ratio = bounded(log_probs - old_log_probs)
    ratio = log_ratio.exp()
    plain = -advantages * ratio
    clipped = -advantages * ratio.clamp(1 - clip_low, 1 + clip_high)
    losses = torch.maximum(plain, clipped)
    metrics = {
        "pg_clipfrac": masked_sum((clipped > plain).to(losses), mask),
        "ppo_kl": masked_sum(-log_ratio.detach(), mask),
        "pg_clipfrac_lower": losses.new_zeros(()),
    }
    if dual_clip is not None:
        bound = -advantages * dual_clip
        negative = advantages < 0
        metrics["pg_clipfrac_lower"] = masked_sum((negative & (losses > bound)).to(losses), mask)
        losses = torch.where(negative, torch.minimum(losses, bound), losses)
    return losses, {name: value.detach() for name, value in metrics.items()}
