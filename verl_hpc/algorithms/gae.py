"""Generalised advantage estimation (arXiv 1506.02438, equations 11 to 16)."""

from __future__ import annotations

import torch

from verl_hpc.algorithms.masked import Reduce, alone, whiten


def gae(
    rewards: torch.Tensor,
    values: torch.Tensor,
    mask: torch.Tensor,
    gamma: float,
    lam: float,
    reduce: Reduce = alone,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Advantages and returns, both (B, T).

    delta_t = r_t + gamma V_{t+1} - V_t and A_t = delta_t + gamma lam A_{t+1}, backwards. Where the
    mask is 0 (an environment's tokens between two turns) the next value and the last advantage
    are carried over unchanged, so values there do not matter. Returns are A + V before whitening;
    advantages are whitened over the mask.

    Args:
        rewards: (B, T) reward of each token.
        values: (B, T) value of the state before each token.
        mask: (B, T).
        gamma: discount.
        lam: trade-off between bias and variance.
        reduce: sums over data-parallel ranks.
    """
    next_value = values.new_zeros(values.shape[0])
    advantage = values.new_zeros(values.shape[0])
    backwards = []
    for t in reversed(range(values.shape[1])):
        valid = mask[:, t].bool()
        delta = rewards[:, t] + gamma * next_value - values[:, t]
        advantage = torch.where(valid, delta + gamma * lam * advantage, advantage)
        next_value = torch.where(valid, values[:, t], next_value)
        backwards.append(advantage)
    advantages = torch.stack(backwards[::-1], dim=1)
    return whiten(advantages, mask, reduce) * mask, advantages + values
