"""Generalised advantage estimation (arXiv 1506.02438, equations 11 to 16)."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Need, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import discounted, later, whiten
from verl_hpc.section import Fraction


class Gae(Advantage):
    """Advantages from the values of a critic."""

    name: Literal["gae"] = "gae"
    gamma: Fraction = 1.0
    """Discount of a reward for each token that it comes later."""
    lam: Fraction = 1.0
    """GAE's lambda: 0 takes one reward and the next value, as biased as the critic is; 1 takes the
    whole return, with its variance."""
    value_lam: Fraction | None = None
    """Lambda of the returns that the critic learns; null takes lam. 1 with a smaller lam is VAPO's
    decoupled GAE (arXiv 2504.05118, section 4.1)."""
    needs: ClassVar[frozenset[Need]] = frozenset({"values"})

    def __call__(self, batch: Scored) -> tuple[torch.Tensor, torch.Tensor]:
        """Whitened advantages, and returns: advantages before whitening, plus values."""
        assert batch.values is not None
        advantages = self._advantages(batch, batch.values, self.lam)
        returns = advantages + batch.values
        if self.value_lam is not None:
            returns = self._advantages(batch, batch.values, self.value_lam) + batch.values
        return whiten(advantages, batch.mask, batch.reduce) * batch.mask, returns

    def _advantages(self, batch: Scored, values: torch.Tensor, lam: float) -> torch.Tensor:
        """delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, backwards.

        Where the mask is 0 (an environment's tokens between two turns) the next value and the last
        advantage are carried over unchanged, so values there do not matter.
        """
        counts = batch.mask.bool()
        # Value of the first token from each place on that counts.
        value = discounted((~counts).to(values), torch.where(counts, values, 0))
        delta = batch.rewards + self.gamma * later(value, 1) - values
        discount = torch.where(counts, self.gamma * lam, torch.ones_like(values))
        return discounted(discount, torch.where(counts, delta, 0))
