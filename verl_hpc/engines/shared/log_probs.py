"""Log-probabilities, entropy and the likeliest tokens from logits whose vocabulary is split over
ranks.

The vocabulary is never gathered: ranks exchange a few numbers per token.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist

# Far below any logit, yet finite: 0 * -inf would be NaN in the entropy.
_MASKED = -1e30
# Elements that are widened to float32 at a time, here and in the backward pass: on GPUs so many
# that launches cost little, on CPUs so few that they and what is made of them stay in the cache.
_CHUNK = {"cuda": 1 << 26, "cpu": 1 << 20}


class _LogProbsAndEntropy(torch.autograd.Function):
    """With p = softmax(x): log_prob = x_t - logsumexp(x), entropy = logsumexp(x) - sum(p x); d
    log_prob / dx = 1_t - p, d entropy / dx = -p (log p + entropy).

    Only the logits in their own element type are kept for the backward pass. Targets are (T, n)."""

    @staticmethod
    def forward(
        ctx: Any,
        logits: torch.Tensor,
        targets: torch.Tensor,
        first_row: int,
        num_rows: int,
        temperature: float,
        group: dist.ProcessGroup | None,
        vocabulary: int | None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        ctx.temperature, ctx.num_rows = temperature, num_rows
        highest = _highest(logits, num_rows, temperature, group)
        # Each rank contributes the logits of the targets in its shard of the vocabulary.
        local = targets - first_row
        mine = (local >= 0) & (local < num_rows)
        index = torch.where(mine, local, 0)
        totals = highest.new_empty(len(targets), 2 + targets.shape[1])
        for rows in _chunks(logits):
            x = _shifted(logits[rows], highest[rows], num_rows, temperature)
            totals[rows, 2:] = x.gather(-1, index[rows]) * mine[rows]
            p = x.exp()
            totals[rows, 0] = p.sum(-1)
            totals[rows, 1] = p.mul_(x).sum(-1)
            del x, p  # or they would stay while the next chunk's are made
        _all_reduce(totals, dist.ReduceOp.SUM, group)
        # sum(exp x) and sum(x exp x); entropy follows without another pass over the logits.
        total, weighted = totals[:, 0], totals[:, 1]
        log_total = total.log()
        entropy = log_total - weighted / total
        ctx.save_for_backward(logits, highest, total, entropy, index, mine)
        ctx.set_materialize_grads(False)
        if vocabulary is not None:
            return _log_softmax(logits, targets, vocabulary, temperature, group), entropy
        return totals[:, 2:] - log_total[:, None], entropy

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
                grad -= grad_log_probs[rows].sum(-1, keepdim=True) * p
                grad.scatter_add_(-1, index[rows], grad_log_probs[rows] * mine[rows])
            if grad_entropy is not None:
                slope = torch.xlogy(p, p) + p * entropy[rows, None]
                grad -= slope.mul_(grad_entropy[rows, None])
            grads[rows] = grad / ctx.temperature
        return grads, None, None, None, None, None, None


def _log_softmax(
    logits: torch.Tensor,
    targets: torch.Tensor,
    vocabulary: int,
    temperature: float,
    group: dist.ProcessGroup | None,
) -> torch.Tensor:
    """Return the targets' log-probs with the bits of torch.log_softmax, (T, n); ranks exchange the
    logits of some tokens at a time. Padding is behind the vocabulary's last token."""
    log_probs = targets.new_empty(targets.shape, dtype=torch.float32)
    for rows in _chunks(logits):
        whole = _gather(logits[rows], group)[:, :vocabulary].float() / temperature
        log_probs[rows] = whole.log_softmax(-1).gather(-1, targets[rows])
    return log_probs


def _highest(
    logits: torch.Tensor, num_rows: int, temperature: float, group: dist.ProcessGroup | None
) -> torch.Tensor:
    """Return each token's largest tempered logit in the whole vocabulary, (T,) float32."""
    if num_rows == 0:
        highest = logits.new_full(logits.shape[:-1], _MASKED, dtype=torch.float32)
    else:
        highest = logits[..., :num_rows].amax(dim=-1).float() / temperature
    _all_reduce(highest, dist.ReduceOp.MAX, group)
    return highest


def _shifted(
    logits: torch.Tensor, highest: torch.Tensor, num_rows: int, temperature: float
) -> torch.Tensor:
    """Return tempered logits in float32, shifted so that the largest is 0, with padding far
    below."""
    x = logits.float() / temperature
    x[..., num_rows:] = _MASKED
    x -= highest[..., None]
    return x


def _chunks(logits: torch.Tensor) -> Iterator[slice]:
    """Return slices of tokens small enough for float32 copies."""
    step = max(_CHUNK[logits.device.type] // max(logits.shape[-1], 1), 1)
    return (slice(start, start + step) for start in range(0, len(logits), step))


def _all_reduce(
    tensor: torch.Tensor, op: dist.ReduceOp.RedOpType, group: dist.ProcessGroup | None
) -> None:
    if group is not None:
        dist.all_reduce(tensor, op=op, group=group)


def _gather(tensor: torch.Tensor, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Concatenate every rank's (T, n) along the last dimension."""
    if group is None:
        return tensor
    parts = [torch.empty_like(tensor) for _ in range(group.size())]
    dist.all_gather(parts, tensor, group=group)
    return torch.cat(parts, dim=-1)


def log_probs_and_entropy(
    logits: torch.Tensor,
    targets: torch.Tensor,
    *,
    first_row: int,
    num_rows: int,
    temperature: float = 1.0,
    group: dist.ProcessGroup | None = None,
    vocabulary: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return each target's log-probability, float32 in the targets' shape, and each distribution's
    entropy, (T,) float32.

    Args:
        logits: (T, vocabulary shard), any float type; differentiable.
        targets: (T,) or (T, n) int64 ids in the whole vocabulary.
        first_row: id of the shard's first row.
        num_rows: rows of the shard without padding, which gets probability 0.
        temperature: divides the logits.
        group: ranks that share the vocabulary; None if this rank has all of it.
        vocabulary: tokens of the whole vocabulary, for log-probs with the bits of torch.log_softmax
            over all of them; None sums the ranks' parts.
    """
    log_probs, entropy = _LogProbsAndEntropy.apply(
        logits, targets.view(len(targets), -1), first_row, num_rows, temperature, group, vocabulary
    )
    return log_probs.view(targets.shape), entropy


@torch.no_grad()
def sum_p_squared(
    logits: torch.Tensor,
    *,
    num_rows: int,
    temperature: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the sum over the vocabulary of squared probabilities, (T,) float32; arguments as in
    `log_probs_and_entropy`."""
    highest = _highest(logits, num_rows, temperature, group)
    totals = highest.new_empty(2, len(logits))
    for rows in _chunks(logits):
        p = _shifted(logits[rows], highest[rows], num_rows, temperature).exp_()
        totals[0, rows] = p.sum(-1)
        totals[1, rows] = p.square_().sum(-1)
    _all_reduce(totals, dist.ReduceOp.SUM, group)
    return totals[1] / totals[0].square()


@torch.no_grad()
def likeliest_tokens(
    logits: torch.Tensor,
    count: int,
    *,
    first_row: int,
    num_rows: int,
    group: dist.ProcessGroup | None = None,
) -> torch.Tensor:
    """Return the ids of the likeliest tokens in descending order, (T, count) int64; ties are in any
    order. Arguments as in `log_probs_and_entropy`; `count` is at most the size of the
    vocabulary."""
    # The likeliest of each shard, then the likeliest of those of all ranks.
    here = min(count, num_rows)
    values = logits.new_full((len(logits), count), -torch.inf)
    tokens = torch.zeros(len(logits), count, dtype=torch.int64, device=logits.device)
    for rows in _chunks(logits) if here else ():
        top = logits[rows, :num_rows].topk(here, dim=-1)
        values[rows, :here], tokens[rows, :here] = top
    values, tokens = _gather(values, group), _gather(tokens + first_row, group)
    return tokens.gather(-1, values.topk(count, dim=-1).indices)
