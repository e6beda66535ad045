"""Interface of policy losses: settings that are called with the tokens of a micro-batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from verl_hpc.algorithms.aggregation import Mode
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.log_ratio import bounded
from verl_hpc.algorithms.masked import Reduce, alone
from verl_hpc.section import OwnName, OwnSection, Section


@dataclass(frozen=True)
class Tokens:
    """Response tokens of a micro-batch of B sequences, all (B, T)."""

    old_log_probs: torch.Tensor
    """Under the policy that the ratio starts from."""
    log_probs: torch.Tensor
    """Under the policy that is trained; differentiable."""
    advantages: torch.Tensor
    mask: torch.Tensor
    """1 where a token is trained on."""
    selected: torch.Tensor | None = None
    """Bool: tokens that `PolicyLoss.select` chose, where a loss selects."""

    @property
    def log_ratio(self) -> torch.Tensor:
        """Log-ratio of new to old probability, clamped to +-20; differentiable."""
        return bounded(self.log_probs - self.old_log_probs)

    def clipped(
        self, ratio: torch.Tensor, low: float, high: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """max(-A r, -A clip(r, 1 - low, 1 + high)) (arXiv 1707.06347, equation 7), and where the
        clip bounds it, 1, without gradient."""
        plain = -self.advantages * ratio
        clipped = -self.advantages * ratio.clamp(1 - low, 1 + high)
        return torch.maximum(plain, clipped), (clipped > plain).to(plain)


@dataclass(frozen=True)
class StepTokens:
    """Response tokens of a whole step, those of the B sequences that this rank has; all (B, T)."""

    old_log_probs: torch.Tensor
    advantages: torch.Tensor
    mask: torch.Tensor
    """1 where a token is trained on."""
    random: torch.Tensor
    """float64 in [0, 1), a token's own: the same on whichever rank it is."""
    reduce: Reduce = alone
    """Sums a tensor over data-parallel ranks; all of them call it."""


class PolicyLoss(Section):
    """A policy loss: its fields are the settings of `algorithm.loss`.

    One is a class in a file of this package's `losses`, or in a file of the user's
    (`algorithm.loss.name: path/file.py:Name`). Calling it gives losses, before any aggregation,
    weight of a correction, entropy or KL term.
    """

    name: str
    aggregation: ClassVar[Mode] = "token-mean"
    """Mode used if algorithm.aggregation is null."""
    selects: ClassVar[bool] = False
    """Whether it treats some tokens of a step otherwise, which `select` chooses before the first
    optimizer step."""

    def __call__(self, tokens: Tokens) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        """Losses of tokens, (B, T), and metrics: sums over the mask, which become means over the
        tokens of a mini-batch."""
        raise NotImplementedError

    def weighted(
        self, losses: torch.Tensor, weights: torch.Tensor, mask: torch.Tensor
    ) -> torch.Tensor:
        """Losses of tokens times the weights of a correction, all (B, T)."""
        del mask
        return losses * weights

    def select(self, step: StepTokens) -> torch.Tensor:
        """Choose the tokens of `Tokens.selected`, (B, T) bool; every rank calls it."""
        raise NotImplementedError


class OwnLoss(PolicyLoss, OwnSection):
    """One of the user's, before its file is loaded."""

    name: OwnName
