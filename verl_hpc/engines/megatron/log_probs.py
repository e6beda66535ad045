"""Log-probabilities and entropy from logits whose vocabulary is split over ranks.

The vocabulary is never gathered: two all-reduces of (T,)-sized tensors are all that is sent.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

# Far below any logit, yet finite: 0 * -inf would be NaN in the entropy.
_MASKED = -1e30


class _LogProbsAndEntropy(torch.autograd.Function):
    """With p = softmax(x): log_prob = x_t - logsumexp(x), entropy = logsumexp(x) - sum(p x);
    d log_prob / dx = 1_t - p, d entropy / dx = -p (log p + entropy)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        first_row: int,
        num_rows: int,
        temperature: float,
        group: dist.ProcessGroup | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        x = logits.float() / temperature
        x[..., num_rows:] = _MASKED
        highest = x.amax(dim=-1)
        _all_reduce(highest, dist.ReduceOp.MAX, group)
        x -= highest[..., None]
        local = targets - first_row
        mine = (local >= 0) & (local < num_rows)
        index = torch.where(mine, local, 0)[..., None]
        picked = x.gather(-1, index)[..., 0] * mine
        p = x.exp()
        totals = torch.stack([p.sum(-1), (p * x).sum(-1), picked])
        _all_reduce(totals, dist.ReduceOp.SUM, group)
        total, weighted, target = totals
        log_total = total.log()
        entropy = log_total - weighted / total
        p /= total[..., None]
        ctx.save_for_backward(p, entropy, index, mine)
        ctx.set_materialize_grads(False)
        ctx.temperature, ctx.dtype = temperature, logits.dtype
        return target - log_total, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        p, entropy, index, mine = ctx.saved_tensors
        grad = torch.zeros_like(p)
        if grad_log_probs is not None:
            grad -= grad_log_probs[..., None] * p
            grad.scatter_add_(-1, index, (grad_log_probs * mine)[..., None])
        if grad_entropy is not None:
            grad -= grad_entropy[..., None] * (torch.xlogy(p, p) + p * entropy[..., None])
        return (grad / ctx.temperature).to(ctx.dtype), None, None, None, None, None


def _all_reduce(
    tensor: torch.Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
) -> None:
    if group is not None:
        dist.all_reduce(tensor, op=op, group=group)


def log_probs_and_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    first_row: int,
    num_rows: int,
    temperature: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probability of each target and entropy of each distribution, both (T,) float32.

    Args:
        logits: (T, vocabulary shard), any float type; differentiable.
        targets: (T,) int64 ids in the whole vocabulary.
        first_row: id of the shard's first row.
        num_rows: rows of the shard that are no padding; the others get probability 0.
        temperature: divides the logits.
        group: ranks that share the vocabulary; None if this rank has all of it.
    """
    return _LogProbsAndEntropy.apply(logits, targets, first_row, num_rows, temperature, group)
