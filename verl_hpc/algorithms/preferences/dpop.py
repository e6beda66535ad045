"""DPO-Positive (arXiv 2402.13228)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import NonNegativeFinite


class Dpop(PreferenceLoss):
    """DPO with a penalty where the chosen answer becomes less likely than the reference has it."""

    name: Literal["dpop"] = "dpop"
    penalty: NonNegativeFinite = 50.0
    """The paper's lambda."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(beta (a_c - a_r - lambda max(0, -a_c))), a an answer's log-ratio to the
        reference."""
        lost = torch.relu(-chosen.log_ratios)
        margin = chosen.log_ratios - rejected.log_ratios - self.penalty * lost
        return -torch.nn.functional.logsigmoid(self.beta * margin)
