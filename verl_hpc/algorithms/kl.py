"""Estimators of the KL divergence from a reference policy, and its coefficient's controller."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.log_ratio import bounded

Estimator = Literal["k1", "abs", "k2", "k3", "k1+", "k3+"]

_LARGEST_K3 = 10.0


def kl_penalty(
    log_probs: torch.Tensor, ref_log_probs: torch.Tensor, estimator: Estimator
) -> torch.Tensor:
    """Per-token estimate of KL(policy || reference), same shape as its arguments.

    With d = log_prob - ref: k1 is d, abs |d|, k2 d^2 / 2, k3 exp(-d) + d - 1 (d clamped to +-20,
    the result to +-10). A trailing + keeps the value and takes k2's gradient, which unlike k1's
    and k3's is that of the KL divergence. Source: J. Schulman, "Approximating KL Divergence", and
    verl's `kl_penalty`.
    """
    if estimator.endswith("+"):
        value = _kl(log_probs, ref_log_probs, estimator[:-1])
        gradient = _kl(log_probs, ref_log_probs, "k2")
        return gradient - gradient.detach() + value.detach()
    return _kl(log_probs, ref_log_probs, estimator)


def _kl(log_probs: torch.Tensor, ref_log_probs: torch.Tensor, estimator: str) -> torch.Tensor:
    difference = log_probs - ref_log_probs
    if estimator == "k1":
        return difference
    if estimator == "abs":
        return difference.abs()
    if estimator == "k2":
        return 0.5 * difference.square()
    assert estimator == "k3", estimator
    back = bounded(-difference)
    return (back.exp() - back - 1).clamp(-_LARGEST_K3, _LARGEST_K3)


@dataclass
class KlController:
    """The coefficient of the KL penalty; adaptive if a target is given.

    beta *= 1 + clip(kl / target - 1, +-0.2) n / horizon (arXiv 1909.08593, section 2.2).
    """

    coefficient: float
    target: float | None = None
    horizon: int = 10000
    num_updates: int = 0
    """Since this process started."""

    @property
    def is_adaptive(self) -> bool:
        return self.target is not None

    def update(self, kl: float, num_samples: int) -> None:
        """Take notice of a batch's mean KL; does nothing for a fixed coefficient."""
        if self.target is not None:
            error = min(max(kl / self.target - 1, -0.2), 0.2)
            self.num_updates += 1
            self.coefficient *= 1 + error * num_samples / self.horizon
