"""ReMax: REINFORCE with the reward of the greedy answer as baseline (arXiv 2310.10505)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Need, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import from_here_on


class Remax(Advantage):
    """The rewards of a response less those of the greedy answer to its prompt."""

    name: Literal["remax"] = "remax"
    needs: ClassVar[frozenset[Need]] = frozenset({"greedy"})

    def __call__(self, batch: Scored) -> torch.Tensor:
        """The sum of the rewards from each token on, less the greedy answer's score (arXiv
        2310.10505, algorithm 1, whose one reward comes with the last token)."""
        assert batch.greedy is not None
        rewards = torch.where(batch.mask.bool(), batch.rewards, 0)
        returns = from_here_on(rewards) * batch.mask
        return returns - batch.of_tokens(batch.greedy.to(returns))
