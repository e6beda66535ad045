"""REINFORCE++ (arXiv 2501.03262): no critic, no groups, advantages whitened over the batch."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import discounted, whiten
from verl_hpc.section import Fraction


class ReinforcePlusPlus(Advantage):
    """Discounted returns of tokens against those of the whole batch."""

    name: Literal["reinforce_plus_plus"] = "reinforce_plus_plus"
    gamma: Fraction = 1.0
    """Discount of a reward for each token that it comes later."""

    def __call__(self, batch: Scored) -> torch.Tensor:
        """The rewards from each token on, discounted and whitened; tokens that do not count are
        passed over."""
        mask, rewards = batch.mask.bool(), batch.rewards
        factors = torch.where(mask, self.gamma, torch.ones_like(rewards))
        returns = discounted(factors, torch.where(mask, rewards, 0))
        return whiten(returns, batch.mask, batch.reduce) * batch.mask
