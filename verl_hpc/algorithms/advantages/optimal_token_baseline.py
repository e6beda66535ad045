"""The optimal token baseline (arXiv 2602.07078), as verl's `optimal_token_baseline` has it, and
with gaps in masks its `tir_optimal_token_baseline`."""

from __future__ import annotations

from typing import ClassVar, Literal

from verl_hpc.algorithms.advantage import Advantage, Need, Scored
from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.masked import from_here_on

_EPSILON = 1e-8


class OptimalTokenBaseline(Advantage):
    """Each token against what the responses to the same prompt earn from its place on."""

    name: Literal["optimal_token_baseline"] = "optimal_token_baseline"
    handle_zero_tail: bool = True
    """Whether the longest response to a prompt has no baseline after the end of all others. With
    false its own return is the baseline there, so that these tokens have no advantage."""
    needs: ClassVar[frozenset[Need]] = frozenset({"sum_p_squared"})
    compares: ClassVar[bool] = True

    def __call__(self, batch: Scored) -> torch.Tensor:
        """A_t = G_t - B_t with B_t = sum(G_t W_t) / (sum(W_t) + 1e-8) over the responses to a
        prompt, the baseline of least variance where W_t stands for the squared norm of a
        response's gradient so far.

        G_t is the sum of the rewards from token t on, and W_t that of 1 - 2 p + sum(p^2), the
        squared gradient of a log-prob by the logits, up to token t. Places t are counted over the
        tokens that count, so that what an environment wrote between them does not part them. The
        only response to a prompt with such a token has no baseline. Weights of
        algorithm.correction are no part of W.
        """
        assert batch.log_probs is not None and batch.sum_p_squared is not None
        counts = batch.mask.bool()
        returns = from_here_on(torch.where(counts, batch.rewards, 0).double())
        gradients = 1 - 2 * batch.log_probs.exp() + batch.sum_p_squared
        weights = torch.where(counts, gradients, 0).double().cumsum(-1)
        baselines, places = self._baselines(batch, returns, weights)
        advantages = returns - baselines[places]
        return torch.where(counts, advantages, 0).to(batch.rewards)

    def _baselines(
        self, batch: Scored, returns: torch.Tensor, weights: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the baselines of every place of every group, (groups x longest,), and the index of
        each token's baseline, (B, T)."""
        longest = max(int(batch.lengths().max()), 1)
        counts = batch.mask.bool()
        places = (counts.cumsum(-1) - 1).clamp(min=0)
        places = places + batch.groups[batch.here, None] * longest
        parts = torch.stack([returns * weights, weights, torch.ones_like(weights)])
        sums = parts.new_zeros(3, batch.num_groups * longest)
        sums.index_add_(1, places[counts], parts[:, counts])
        weighted, total, num_responses = batch.reduce(sums).view(3, -1, longest)
        baselines = weighted / (total + _EPSILON)
        has_one = num_responses == 1
        none = has_one if self.handle_zero_tail else has_one[:, :1]
        return torch.where(none, 0, baselines).flatten(), places
