"""SPPO with hard labels (arXiv 2405.00675)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss


class Sppo(PreferenceLoss):
    """A log-ratio to reach for each answer by itself."""

    name: Literal["sppo"] = "sppo"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(a_c - 1 / (2 beta))^2 + (a_r + 1 / (2 beta))^2, a an answer's log-ratio to the
        reference; beta is the inverse of the paper's eta."""
        target = 1 / (2 * self.beta)
        return (chosen.log_ratios - target).square() + (rejected.log_ratios + target).square()
