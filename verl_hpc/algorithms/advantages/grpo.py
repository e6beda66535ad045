"""Group-relative advantages (GRPO, arXiv 2402.03300, section 4.1.2; Dr.GRPO, arXiv 2503.20783)."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.advantage import GroupDivided, Scored
from verl_hpc.algorithms.lazy import torch


class Grpo(GroupDivided):
    """Each response against those to the same prompt."""

    name: Literal["grpo"] = "grpo"
    std: Literal["group", "batch", "none"] = "group"
    """Standard deviation of scores that advantages are divided by: that of the responses to the
    same prompt, of the whole batch (arXiv 2508.08221), or none (Dr.GRPO, arXiv 2503.20783)."""

    def __call__(self, batch: Scored) -> torch.Tensor:
        """(s - mean) / (std + epsilon), std unbiased. The only response to a prompt has mean 0 and,
        in its group, std 1."""
        centred = batch.scores - batch.group_mean(batch.scores)
        if self.std == "batch":
            deviation = batch.scores.std() if len(batch.scores) > 1 else 1
            return centred / (deviation + self.epsilon)
        return self.divided(batch, centred, batch.scores)
