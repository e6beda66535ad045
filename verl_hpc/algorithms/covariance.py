"""How much a token's advantage goes with its log-prob (arXiv 2505.22617, equation 8)."""

from __future__ import annotations

from verl_hpc.algorithms.lazy import torch
from verl_hpc.algorithms.loss import StepTokens
from verl_hpc.algorithms.masked import masked_sum


def covariances(step: StepTokens) -> tuple[torch.Tensor, int]:
    """(log_prob - mean) (A - mean) of every token, (B, T) float64, and how many tokens of all ranks
    count; the means are over these.

    Of the log-probs before the step, so that what is chosen depends neither on micro-batches nor
    on mini-batches; verl takes a micro-batch's, while it trains.
    """
    log_probs, advantages = step.old_log_probs.double(), step.advantages.double()
    sums = [masked_sum(log_probs, step.mask), masked_sum(advantages, step.mask)]
    totals = step.reduce(torch.stack([*sums, step.mask.sum().double()])).tolist()
    count = max(totals[2], 1.0)
    return (log_probs - totals[0] / count) * (advantages - totals[1] / count), int(totals[2])
