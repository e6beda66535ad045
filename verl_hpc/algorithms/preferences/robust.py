"""Robust DPO: unbiased where pairs are mislabelled at a known rate (arXiv 2403.00409)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import Number


class Robust(PreferenceLoss):
    """DPO's loss, of which the expectation under flipped pairs is that under the true ones."""

    name: Literal["robust"] = "robust"
    label_smoothing: Annotated[Number, Field(ge=0.0, lt=0.5)] = 0.1
    """Share of pairs that are the wrong way round."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """(-(1 - e) log sigmoid(beta h) + e log sigmoid(-beta h)) / (1 - 2 e), h the difference
        of the answers' log-ratios to the reference."""
        logits = self.beta * (chosen.log_ratios - rejected.log_ratios)
        right, wrong = (torch.nn.functional.logsigmoid(x) for x in (logits, -logits))
        rate = self.label_smoothing
        return (-(1 - rate) * right + rate * wrong) / (1 - 2 * rate)
