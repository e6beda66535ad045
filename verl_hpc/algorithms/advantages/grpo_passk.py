"""Pass@k training: only the best of a group learns (arXiv 2503.19595)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.advantage import GroupDivided, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.errors import TrainingError


class GrpoPassK(GroupDivided):
    """The best response to a prompt against the second best; the others have no advantage."""

    name: Literal["grpo_passk"] = "grpo_passk"
    std: Literal["group", "none"] = "group"
    """Whether the difference is divided by the standard deviation of the group's scores."""

    def __call__(self, batch: Scored) -> torch.Tensor:
        """(best - second best) / (std + epsilon) for the best, which is 0 if two are the best.

        Raises:
            TrainingError: a prompt has one response alone.
        """
        if (batch.counts < 2).any():
            raise TrainingError(
                "algorithm.advantage.name = grpo_passk: a prompt has one response alone, and the "
                "best is measured against the second best; set rollout.num_samples to at least 2"
            )
        scores = batch.scores
        best = batch.group_max(scores)
        is_best = scores == best
        others = batch.group_max(torch.where(is_best, -torch.inf, scores))
        alone = is_best & (batch.group_sum(is_best.to(scores)) == 1)
        lead = torch.where(alone, best - others, 0)
        return self.divided(batch, lead, scores)
