"""CPO (arXiv 2401.08417)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import NonNegativeFinite


class Cpo(PreferenceLoss):
    """DPO against a uniform reference, and imitation of the chosen answer."""

    name: Literal["cpo"] = "cpo"
    sft_weight: NonNegativeFinite = 1.0
    """Weight of imitating the chosen answer: minus the mean log-prob of its tokens."""
    reference_free: ClassVar[bool] = True

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-log sigmoid(beta (l_c - l_r)), l the log-prob of an answer."""
        margin = self.rewards(chosen) - self.rewards(rejected)
        return -torch.nn.functional.logsigmoid(margin)

    def rewards(self, answers: Answers) -> torch.Tensor:
        """(B,): beta times the log-prob of an answer."""
        return self.beta * answers.log_probs
