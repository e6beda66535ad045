"""Group-relative advantages of turns, after MT-GRPO (arXiv 2505.11821), whose turns are compared
with the same turn of the other responses to a prompt."""

from __future__ import annotations

from typing import Literal

from verl_hpc.algorithms.advantage import GroupDivided, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import from_here_on


class GrpoTurns(GroupDivided):
    """Each turn against the same turn of the responses to the same prompt."""

    name: Literal["grpo_turns"] = "grpo_turns"
    std: Literal["group", "none"] = "group"
    """Standard deviation that advantages are divided by: that of the same turn in the responses to
    the same prompt, or none."""

    def __call__(self, batch: Scored) -> torch.Tensor:
        """(G_k - mean) / (std + epsilon) for all tokens of turn k, std unbiased.

        G_k is the sum of the rewards from the first token of turn k on, and mean and std are those
        of G_k over the responses to the prompt that have a turn k. A turn that no other of them has
        has no advantage. Turns are the runs of tokens that count.
        """
        counts = batch.mask.bool()
        returns = from_here_on(torch.where(counts, batch.rewards, 0).double())
        starts = counts & ~torch.nn.functional.pad(counts, (1, 0))[:, :-1]
        numbers = (starts.cumsum(-1) - 1).clamp(min=0)
        most = self._most_turns(batch, starts)
        # Group and turn of each token, as one number.
        turn = numbers + batch.groups[batch.here, None] * most
        number, total = self._sums(batch, starts, turn, most, returns)
        mean = total / number.clamp(min=1)
        _, squares = self._sums(batch, starts, turn, most, (returns - mean[turn]) ** 2)
        by = torch.ones_like(mean)
        if self.std == "group":
            by = (squares / (number - 1).clamp(min=1)).sqrt() + self.epsilon
        places = torch.arange(counts.shape[-1], device=counts.device).expand_as(turn)
        first = torch.where(starts, places, 0).cummax(-1).values
        advantages = (returns.gather(-1, first) - mean[turn]) / by[turn]
        return torch.where(counts & (number > 1)[turn], advantages, 0).to(batch.rewards)

    def _most_turns(self, batch: Scored, starts: torch.Tensor) -> int:
        """Return how many turns the response with the most of them has; every rank calls it."""
        turns = torch.zeros_like(batch.scores)
        turns[batch.here] = starts.sum(-1).to(turns)
        return max(int(batch.reduce(turns).max()), 1)

    def _sums(
        self,
        batch: Scored,
        starts: torch.Tensor,
        turn: torch.Tensor,
        most: int,
        values: torch.Tensor,
    ) -> torch.Tensor:
        """Return for the turns of all groups how many responses have them, and the sum of the
        values at their first tokens, (2, groups x most); every rank calls it."""
        parts = torch.stack([torch.ones_like(values), values])
        sums = parts.new_zeros(2, batch.num_groups * most)
        return batch.reduce(sums.index_add_(1, turn[starts], parts[:, starts]))
