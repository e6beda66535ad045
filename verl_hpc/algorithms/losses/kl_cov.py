"""KL-Cov: a KL penalty on the few tokens that cost most entropy (arXiv 2505.22617)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.covariance import covariances
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import PolicyLoss, StepTokens, Tokens
from verl_hpc.algorithms.masked import masked_sum
from verl_hpc.algorithms.selection import at_least_kth_largest
from verl_hpc.section import Fraction, NonNegativeFinite


class KlCov(PolicyLoss):
    """The ratio times the advantage; tokens whose advantage goes with their log-prob stay near."""

    name: Literal["kl_cov"] = "kl_cov"
    share: Fraction = 2e-4
    """Share of the step's tokens, those of the largest covariance, that are penalised; at least one
    token."""
    coefficient: NonNegativeFinite = 1.0
    """Weight of the penalty."""
    selects: ClassVar[bool] = True

    def select(self, step: StepTokens) -> torch.Tensor:
        """The tokens of the largest covariance (equation 12)."""
        covariance, num_tokens = covariances(step)
        count = max(int(self.share * num_tokens), 1)
        return at_least_kth_largest(covariance, step.mask.bool(), count, step.reduce)

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """-A r, plus coefficient |log_prob - old| for selected tokens (equation 13); the log-ratio
        is clamped to +-20.

        Metrics: pg_covfrac (selected tokens), ppo_kl (as verl's, of |log_prob - old|).
        """
        assert tokens.selected is not None
        log_ratio = tokens.log_ratio
        penalty = torch.where(tokens.selected, self.coefficient * log_ratio.abs(), 0)
        return -tokens.advantages * log_ratio.exp() + penalty, {
            "pg_covfrac": masked_sum(tokens.selected.to(log_ratio), tokens.mask).detach(),
            "ppo_kl": masked_sum(log_ratio.detach().abs(), tokens.mask),
        }
