"""DPPO: a bound on the divergence of policies instead of on their ratio (arXiv 2602.04879)."""

from __future__ import annotations

from typing import Annotated, Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.section import PositiveFinite, chosen_by

_LEAST = 1e-12
"""Probability that another token than the sampled one has at least."""
_OF_THE_PAPER = {"tv": 0.15, "kl": 0.05}
"""The largest divergence, by its kind."""


class Dppo(PolicyLoss):
    """The ratio times the advantage; nothing for tokens that would leave the trust region."""

    name: Literal["dppo"] = "dppo"
    divergence: Literal["tv", "kl"] = "tv"
    """Divergence of the distributions over the sampled token and all others, which is at most that
    of the policies: total variation, or KL of the new policy from the old one."""
    threshold: Annotated[PositiveFinite | None, chosen_by("divergence")] = None
    """Largest divergence; null takes the paper's, 0.15 for tv and 0.05 for kl."""
    max_ratio: PositiveFinite = 20.0
    """Largest ratio of new to old probability that a gradient is multiplied with; small ones bias
    it (section 5.4)."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-M A min(r, max_ratio) log_prob, with r without gradient (equation 11); M = 0 where the
        divergence is above the threshold and the advantage pushes further: A > 0 and r > 1, or
        A < 0 and r < 1 (equation 12). The log-ratio is clamped to +-20.

        Metrics: pg_clipfrac (tokens left out), pg_clipfrac_lower (other tokens whose ratio is
        bounded), ppo_kl.
        """
        log_ratio = tokens.log_ratio.detach()
        ratio = log_ratio.exp()
        outside = (tokens.advantages * log_ratio > 0) & (self._divergence(tokens) > self._largest)
        bounded = (ratio > self.max_ratio) & ~outside
        losses = -tokens.advantages * ratio.clamp(max=self.max_ratio) * tokens.log_probs
        return torch.where(outside, 0, losses), {
            "pg_clipfrac": masked_sum(outside.to(ratio), tokens.mask),
            "pg_clipfrac_lower": masked_sum(bounded.to(ratio), tokens.mask),
            "ppo_kl": masked_sum(-log_ratio, tokens.mask),
        }

    @property
    def _largest(self) -> float:
        return _OF_THE_PAPER[self.divergence] if self.threshold is None else self.threshold

    def _divergence(self, tokens: Tokens) -> torch.Tensor:
        """(B, T), equations 13 and 14."""
        old, new = tokens.old_log_probs, tokens.log_probs.detach()
        if self.divergence == "tv":
            return (old.exp() - new.exp()).abs()
        rest, new_rest = (-torch.expm1(p).clamp(max=-_LEAST) for p in (old, new))
        return old.exp() * (old - new) + rest * (rest.log() - new_rest.log())
