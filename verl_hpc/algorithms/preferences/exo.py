"""EXO for pairs (arXiv 2402.00856, equation 16)."""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss
from verl_hpc.section import Number


class Exo(PreferenceLoss):
    """The reverse KL divergence of the policy's preference from the data's."""

    name: Literal["exo"] = "exo"
    label_smoothing: Annotated[Number, Field(gt=0.0, lt=0.5)] = 1e-3
    """Share of pairs that are taken to be the wrong way round; without any, the divergence is
    infinite."""

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """p log(p / (1 - e)) + (1 - p) log((1 - p) / e), p = sigmoid(beta h), h the difference of
        the answers' log-ratios to the reference."""
        logits = self.beta * (chosen.log_ratios - rejected.log_ratios)
        right, wrong = (torch.nn.functional.logsigmoid(x) for x in (logits, -logits))
        of_right = right - math.log1p(-self.label_smoothing)
        return right.exp() * of_right + wrong.exp() * (wrong - math.log(self.label_smoothing))
