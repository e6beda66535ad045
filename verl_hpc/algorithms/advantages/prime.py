"""PRIME: outcomes joined with implicit process rewards (arXiv 2502.01456)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Need, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import from_here_on, whiten
from verl_hpc.section import NonNegativeFinite


class Prime(Advantage):
    """The rewards of tokens by a model that learns from outcomes, and the outcome."""

    name: Literal["prime"] = "prime"
    process_weight: NonNegativeFinite = 5.0
    """Weight of the implicit process rewards."""
    outcome_weight: NonNegativeFinite = 5.0
    """Weight of the scores."""
    normalise: Literal["batch", "none"] = "batch"
    """batch divides process rewards by the largest sum of those from a token on, of the batch."""
    needs: ClassVar[frozenset[Need]] = frozenset({"process_rewards"})
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """Sums of rewards from each token on, whitened over the batch.

        Process rewards and scores are each compared with those of the other responses to the
        prompt: r n / (n - 1) - sum of means / (n - 1), n responses of which the means are over
        tokens; the score's is with the last token alone. One that has no others keeps its rewards.
        A response of which no token counts has a score, but no process rewards to compare with.

        This is the form of verl's recipe/prime, which scales also a response's own deviation from
        its mean, unlike the paper's; as there, the last token has no process reward. normalise is
        over all ranks, where verl's is over each rank's responses.
        """
        assert batch.process_rewards is not None
        counts = batch.mask.bool()
        last = counts & (counts.flip(-1).cumsum(-1).flip(-1) == 1)
        process = torch.where(counts & ~last, batch.process_rewards, 0)
        if self.normalise == "batch":
            process = process / (self._largest(batch, process) + 1e-6)
        lengths = batch.lengths()
        means = self._of_all(batch, process.sum(-1)) / lengths.clamp(min=1)
        trained = batch.group_sum((lengths > 0).to(lengths))
        rewards = self.process_weight * self._compared(batch, process, means, trained)
        rewards = torch.where(counts, rewards, 0)
        scores = batch.scores[batch.here, None].to(rewards)
        outcome = self._compared(batch, scores, batch.scores, batch.counts)
        rewards = rewards + self.outcome_weight * torch.where(last, outcome, 0)
        return whiten(from_here_on(rewards), batch.mask, batch.reduce) * counts

    def _compared(
        self, batch: Scored, rewards: torch.Tensor, means: torch.Tensor, sizes: torch.Tensor
    ) -> torch.Tensor:
        """Rewards of the responses here, (B, T) or (B, 1), against the means of all, (N,).

        Args:
            sizes: (N,), how many responses to the same prompt have a mean.
        """
        several, others = sizes > 1, (sizes - 1).clamp(min=1)
        scale = torch.where(several, sizes / others, 1)[batch.here, None]
        baseline = torch.where(several, batch.group_sum(means) / others, 0)[batch.here, None]
        return rewards * scale.to(rewards) - baseline.to(rewards)

    def _largest(self, batch: Scored, process: torch.Tensor) -> torch.Tensor:
        mine = from_here_on(process).abs().amax(-1)
        return self._of_all(batch, mine).max().to(process)

    def _of_all(self, batch: Scored, mine: torch.Tensor) -> torch.Tensor:
        """(B,) of the responses here to (N,); every rank calls it."""
        values = torch.zeros_like(batch.scores)
        values[batch.here] = mine.to(values)
        return batch.reduce(values)
