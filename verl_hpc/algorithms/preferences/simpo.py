"""SimPO (arXiv 2405.14734, equation 6)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import NonNegativeFinite, PositiveFinite


class Simpo(PreferenceLoss):
    """The mean log-prob of a token as the reward, and a margin to win by; no reference."""

    name: Literal["simpo"] = "simpo"
    beta: PositiveFinite = 2.0
    """Scale of the rewards."""
    gamma: NonNegativeFinite = 1.0
    """Margin of the rewards."""
    reference_free: ClassVar[bool] = True

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(beta (m_c - m_r) - gamma), m the mean log-prob of an answer's tokens."""
        margin = self.rewards(chosen) - self.rewards(rejected)
        return -torch.nn.functional.logsigmoid(margin - self.gamma)
