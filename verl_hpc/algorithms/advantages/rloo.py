"""REINFORCE leave-one-out (RLOO, arXiv 2402.14740, section 2.3)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.lazy import torch


class Rloo(Advantage):
    """Each response against the mean of the others to the same prompt."""

    name: Literal["rloo"] = "rloo"
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """s n / (n - 1) - mean n / (n - 1); the only response to a prompt keeps its score."""
        others = (batch.counts - 1).clamp(min=1)
        return batch.scores - (batch.group_sum(batch.scores) - batch.scores) / others
