"""DPO (arXiv 2305.18290, equation 7), with label smoothing (cDPO)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import Number


class Dpo(PreferenceLoss):
    """The log-loss of ranking the chosen answer first by the implicit rewards."""

    name: Literal["dpo"] = "dpo"
    label_smoothing: Annotated[Number, Field(ge=0.0, le=0.5)] = 0.0
    """Share of pairs that are taken to be the wrong way round (E. Mitchell, "A note on DPO with
    noisy preferences", 2023)."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """-(1 - e) log sigmoid(beta h) - e log sigmoid(-beta h), h the difference of the answers'
        log-ratios to the reference."""
        logits = self.beta * (chosen.log_ratios - rejected.log_ratios)
        right, wrong = (torch.nn.functional.logsigmoid(x) for x in (logits, -logits))
        return -(1 - self.label_smoothing) * right - self.label_smoothing * wrong
