"""REINFORCE++-baseline (arXiv 2501.03262): a group's mean as baseline, the batch's deviation."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import whiten


class ReinforcePlusPlusBaseline(Advantage):
    """Each response against the mean of those to its prompt, whitened over the batch's tokens."""

    name: Literal["reinforce_plus_plus_baseline"] = "reinforce_plus_plus_baseline"
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """s - mean of the group, on every token, whitened over all tokens that count."""
        centred = batch.of_tokens(batch.scores - batch.group_mean(batch.scores))
        return whiten(centred, batch.mask, batch.reduce) * batch.mask
