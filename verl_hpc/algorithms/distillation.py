"""Loss of a policy that learns from a teacher's probabilities."""

from __future__ import annotations

import math

from verl_hpc.algorithms.lazy import torch


def forward_kl(
    teacher: torch.Tensor, student: torch.Tensor, rest: bool = True, min_log_prob: float = -math.inf
) -> torch.Tensor:
    """KL(teacher || student) over the teacher's k likeliest tokens, and all others as one.

        sum_i p_i (log p_i - log q_i) + p_rest (log p_rest - log q_rest), p_rest = 1 - sum_i p_i

    It is never above the KL divergence of the whole distributions, and equal to it where k is the
    size of the vocabulary. Without the rest it would be no divergence: below 0 where the student
    gives each of the k more than the teacher does. Divided by their sums instead, what the student
    gives to other tokens would cost nothing.

    Source: the forward KL of GKD (arXiv 2306.13649, section 3) on k tokens and the rest.

    Args:
        teacher: (..., k) log-probs of k different tokens, without gradient.
        student: (..., k) log-probs of the same tokens; differentiable.
        rest: false leaves p_rest out, and what is below 0 then is 0, as verl's forward_kl_topk.
        min_log_prob: the least log-prob of a token, without gradient below it.

    Returns:
        (...), in nats; its gradient is that of the student's log-probs.
    """
    theirs, mine = teacher.clamp(min=min_log_prob), student.clamp(min=min_log_prob)
    of_tokens = (theirs.exp() * (theirs - mine)).sum(-1)
    if not rest:
        return of_tokens.clamp(min=0)
    left = _log_rest(teacher)
    return of_tokens + left.exp() * (left - _log_rest(student))


def _log_rest(log_probs: torch.Tensor) -> torch.Tensor:
    """(..., k) to (...): log of the probability that is left, no smaller than numbers resolve."""
    rest = 1 - log_probs.exp().sum(-1)
    return (rest.clamp(min=0) + torch.finfo(log_probs.dtype).eps).log()
