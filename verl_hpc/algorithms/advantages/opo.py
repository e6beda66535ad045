"""OPO: on-policy RL with the baseline of least variance (arXiv 2505.23585, equation 8)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.lazy import torch


class Opo(Advantage):
    """Each response against its group's mean, in which long responses weigh more."""

    name: Literal["opo"] = "opo"
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """s - sum(length s) / sum(length) over the group; the only response to a prompt keeps its
        score."""
        lengths = batch.lengths()
        total = batch.group_sum(lengths * batch.scores)
        baseline = total / batch.group_sum(lengths).clamp(min=1)
        return batch.scores - torch.where(batch.counts > 1, baseline, 0)
