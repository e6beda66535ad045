"""GPG: group policy gradient (arXiv 2504.02546)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.section import PositiveFinite


class Gpg(Advantage):
    """Each response against its group's mean, the more the fewer have a score."""

    name: Literal["gpg"] = "gpg"
    f_norm: PositiveFinite = 1.0
    """Divisor of the advantages."""
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """alpha (s - mean) / f_norm, alpha = responses of the batch / those whose score is not
        0."""
        alpha = len(batch.scores) / batch.scores.count_nonzero().clamp(min=1).to(batch.scores)
        return alpha * (batch.scores - batch.group_mean(batch.scores)) / self.f_norm
