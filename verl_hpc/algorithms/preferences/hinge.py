"""The hinge loss of SLiC (arXiv 2305.10425) on DPO's implicit rewards."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.preference import Answers, PreferenceLoss


class Hinge(PreferenceLoss):
    """A hinge on the implicit rewards: no gradient once they are 1 apart."""

    name: Literal["hinge"] = "hinge"

    def __call__(self, chosen: Answers, rejected: Answers) -> torch.Tensor:
        """max(0, 1 - beta h), h the difference of the answers' log-ratios to the reference (arXiv
        2309.06657)."""
        return torch.relu(1 - self.beta * (chosen.log_ratios - rejected.log_ratios))
