"""Scores to advantages, token by token."""

from __future__ import annotations

import torch

from verl_hpc.algorithms.gae import gae
from verl_hpc.algorithms.grpo import grpo
from verl_hpc.config.algorithm import GaeConfig, GrpoConfig
from verl_hpc.trainer.batch import (
    ADVANTAGES,
    MASK,
    RETURNS,
    VALUES,
    Columns,
    Samples,
    cut_rows,
    pad_rows,
)
from verl_hpc.trainer.metrics import spread
from verl_hpc.trainer.operators.kl import Penalty
from verl_hpc.trainer.operators.score import Scores
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.recipe import Metrics, operator


@operator("advantages")
def group_advantages(
    place: Placement,
    settings: GrpoConfig,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
    penalty: Penalty | None = None,
) -> tuple[Columns, Metrics]:
    """GRPO: each response against the others of its prompt, the same for all its tokens."""
    rewards = rewards_of(scores, penalty)
    groups = torch.tensor([s.group for s in samples])
    advantages = grpo(rewards, groups, settings.normalise_by_std).float()
    rows = [
        torch.full_like(mask, float(advantages[i]), dtype=torch.float32)
        for i, mask in zip(sequences.positions, sequences[MASK], strict=True)
    ]
    return Columns(sequences.positions, {ADVANTAGES: rows}), reward_metrics(rewards)


@operator("advantages")
def token_advantages(
    place: Placement,
    settings: GaeConfig,
    sequences: Columns,
    scores: Scores,
    values: Columns,
    penalty: Penalty | None = None,
) -> tuple[Columns, Metrics]:
    """GAE: the score comes with the last token that counts, the KL penalty with every token."""
    rows, masks = values[VALUES], sequences[MASK]
    if not rows:  # a group may have nothing of a small batch, and still takes part in the sums
        rows, masks = ([torch.zeros(0, device=place.device)] for _ in range(2))
    padded, mask = pad_rows(rows), pad_rows(masks).float()
    lengths = [len(row) for row in rows]
    rewards = torch.zeros_like(padded)
    for row, position in enumerate(values.positions):
        if penalty is not None:
            rewards[row, : lengths[row]] -= penalty.per_token[row]
        rewards[row, _last(masks[row])] += scores.values[position]
    advantages, returns = gae(rewards, padded, mask, settings.gamma, settings.lam, place.reduce)
    count = len(values.positions)
    found = {
        ADVANTAGES: cut_rows(advantages, lengths)[:count],
        RETURNS: cut_rows(returns, lengths)[:count],
    }
    return Columns(values.positions, found), reward_metrics(rewards_of(scores, penalty))


def _last(mask: torch.Tensor) -> int:
    """The place of the last token that counts; that of the last where none does."""
    places = mask.nonzero()
    return int(places[-1]) if len(places) else len(mask) - 1


def rewards_of(scores: Scores, penalty: Penalty | None) -> torch.Tensor:
    """What a KL penalty leaves of the scores, (number of samples,) float64."""
    rewards = torch.tensor(scores.values, dtype=torch.float64)
    return rewards if penalty is None else rewards - penalty.per_sample


def reward_metrics(rewards: torch.Tensor) -> dict[str, float]:
    return spread("critic/rewards", rewards.tolist())
