"""Clip-Cov: no gradient for a few of the tokens that cost most entropy (arXiv 2505.22617)."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import model_validator

from verl_hpc.algorithms.covariance import covariances
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, StepTokens, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.algorithms.selection import at_least_kth_largest
from verl_hpc.section import Finite, Fraction, NonNegativeFinite


class ClipCov(PolicyLoss):
    """PPO's clipped loss, without some tokens whose advantage goes with their log-prob."""

    name: Literal["clip_cov"] = "clip_cov"
    clip_low: Fraction = 0.2
    """How far below 1 the ratio of new to old probability is clipped."""
    clip_high: NonNegativeFinite = 0.2
    """How far above 1 it is clipped."""
    share: Fraction = 2e-4
    """Share of the step's tokens that are left out; at least one token."""
    lower: Finite = 1.0
    """Smallest covariance of a token that may be left out."""
    upper: Finite = 5.0
    """Largest one."""
    selects: ClassVar[bool] = True

    @model_validator(mode="after")
    def _is_a_band(self) -> ClipCov:
        if not self.lower < self.upper:
            raise ValueError(f"lower = {self.lower:g} is not below upper = {self.upper:g}")
        return self

    def select(self, step: StepTokens) -> torch.Tensor:
        """Random ones of the tokens whose covariance is between the bounds (equation 10)."""
        covariance, num_tokens = covariances(step)
        band = step.mask.bool() & (covariance > self.lower) & (covariance < self.upper)
        count = max(int(self.share * num_tokens), 1)
        return at_least_kth_largest(step.random, band, count, step.reduce)

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """max(-A r, -A clip(r, 1 - low, 1 + high)), and 0 for selected tokens that the clip leaves
        as they are; the log-ratio is clamped to +-20.

        Metrics: pg_clipfrac (as verl's, tokens without a loss, whatever PPO's clip does),
        pg_clipfrac_ratio (tokens whose ratio is clipped), ppo_kl.
        """
        assert tokens.selected is not None
        log_ratio = tokens.log_ratio
        losses, is_clipped = tokens.clipped(log_ratio.exp(), self.clip_low, self.clip_high)
        without = tokens.selected & (is_clipped == 0)
        return torch.where(without, 0, losses), {
            "pg_clipfrac": masked_sum(without.to(is_clipped), tokens.mask),
            "pg_clipfrac_ratio": masked_sum(is_clipped, tokens.mask),
            "ppo_kl": masked_sum(-log_ratio.detach(), tokens.mask),
        }
