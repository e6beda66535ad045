"""Log-probabilities and entropy from logits whose vocabulary is split over ranks.

The vocabulary is never gathered: two all-reduces of (T,)-sized tensors are all that is sent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

# Far below any logit, yet finite: 0 * -inf would be NaN in the entropy.
_MASKED = -1e30
# Elements that are widened to float32 at a time, here and in the backward pass.
_CHUNK = 1 << 26


class _LogProbsAndEntropy(torch.autograd.Function):
    """With p = softmax(x): log_prob = x_t - logsumexp(x), entropy = logsumexp(x) - sum(p x);
    d log_prob / dx = 1_t - p, d entropy / dx = -p (log p + entropy).

    Only the logits as they came are kept for the backward pass."""

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
        ctx.temperature, ctx.num_rows = temperature, num_rows
        highest = _highest(logits, num_rows, temperature)
        _all_reduce(highest, dist.ReduceOp.MAX, group)
        local = targets - first_row
        mine = (local >= 0) & (local < num_rows)
        index = torch.where(mine, local, 0)[..., None]
        totals = highest.new_empty(3, len(targets))
        for rows in _chunks(logits):
            x = _shifted(logits[rows], highest[rows], num_rows, temperature)
            totals[2, rows] = x.gather(-1, index[rows])[..., 0] * mine[rows]
            p = x.exp()
            totals[0, rows] = p.sum(-1)
            totals[1, rows] = p.mul_(x).sum(-1)
        _all_reduce(totals, dist.ReduceOp.SUM, group)
        total, weighted, target = totals
        log_total = total.log()
        entropy = log_total - weighted / total
        ctx.save_for_backward(logits, highest, total, entropy, index, mine)
        ctx.set_materialize_grads(False)
        return target - log_total, entropy

    @staticmethod
    def backward(
        ctx: Any, grad_log_probs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        logits, highest, total, entropy, index, mine = ctx.saved_tensors
        grads = torch.empty_like(logits)
        for rows in _chunks(logits):
            x = _shifted(logits[rows], highest[rows], ctx.num_rows, ctx.temperature)
            p = x.exp_() / total[rows, None]
            grad = torch.zeros_like(p)
            if grad_log_probs is not None:
                grad -= grad_log_probs[rows, None] * p
                grad.scatter_add_(-1, index[rows], (grad_log_probs[rows] * mine[rows])[..., None])
            if grad_entropy is not None:
                slope = torch.xlogy(p, p) + p * entropy[rows, None]
                grad -= slope.mul_(grad_entropy[rows, None])
            grads[rows] = grad / ctx.temperature
        return grads, None, None, None, None, None


def _highest(logits: torch.Tensor, num_rows: int, temperature: float) -> torch.Tensor:
    """Largest tempered logit of each token, (T,) float32; the mask if there is only padding."""
    if num_rows == 0:
        return logits.new_full(logits.shape[:-1], _MASKED, dtype=torch.float32)
    return logits[..., :num_rows].amax(dim=-1).float() / temperature


def _shifted(
    logits: torch.Tensor, highest: torch.Tensor, num_rows: int, temperature: float
) -> torch.Tensor:
    """Tempered logits in float32, their largest at 0 and padding far below."""
    x = logits.float() / temperature
    x[..., num_rows:] = _MASKED
    x -= highest[..., None]
    return x


def _chunks(logits: torch.Tensor) -> Iterator[slice]:
    """Slices of tokens whose float32 copies take little memory."""
    step = max(_CHUNK // max(logits.shape[-1], 1), 1)
    return (slice(start, start + step) for start in range(0, len(logits), step))


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
