"""KTO: learning from answers that are good or bad, each by itself (arXiv 2402.01306)."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers
from verl_hpc.section import NonNegativeFinite, PositiveFinite, Section


class Kto(Section):
    """The value of an answer relative to a reference point, after prospect theory."""

    beta: PositiveFinite = 0.1
    """How closely the reference is kept to: the larger, the closer."""
    desirable_weight: NonNegativeFinite = 1.0
    """Weight of answers with label: true. The paper has weights times counts of the two kinds
    between 1:1 and 4:3."""
    undesirable_weight: NonNegativeFinite = 1.0
    """Weight of answers with label: false."""

    def __call__(
        self, log_ratios: torch.Tensor, desirable: torch.Tensor, kl: torch.Tensor
    ) -> torch.Tensor:
        """Losses of answers, (B,): w (1 - sigmoid(beta (a - kl))) of a desirable one, of others
        w (1 - sigmoid(beta (kl - a))).

        Args:
            log_ratios: (B,) a = log pi(y|x) - log pi_ref(y|x).
            desirable: (B,) bool.
            kl: the reference point, a number without gradient; see `reference_point`.
        """
        gains = self.beta * (log_ratios - kl)
        return torch.where(
            desirable,
            self.desirable_weight * torch.sigmoid(-gains),
            self.undesirable_weight * torch.sigmoid(gains),
        )

    def rewards(self, answers: Answers) -> torch.Tensor:
        """(B,): what answers are worth by the policy, for metrics and evaluation."""
        return self.beta * answers.log_ratios


def reference_point(mean_log_ratio: torch.Tensor) -> torch.Tensor:
    """The estimate of KL(pi || pi_ref), at least 0, from the mean log-ratio of answers to prompts
    that they do not belong to."""
    return mean_log_ratio.clamp(min=0)
