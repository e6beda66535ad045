"""Scores to advantages, token by token."""

from __future__ import annotations

import torch

from verl_hpc.algorithms.gae import gae
from verl_hpc.algorithms.grpo import grpo
from verl_hpc.algorithms.remax import remax
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
    rewards, mask = _token_rewards(place, sequences, scores, penalty)
    padded = pad_rows(values[VALUES]) if values.positions else torch.zeros_like(rewards)
    found = gae(rewards, padded, mask, settings.gamma, settings.lam, place.reduce)
    return _columns(sequences, *found), reward_metrics(rewards_of(scores, penalty))


@operator("advantages")
def greedy_advantages(
    place: Placement,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
    greedy_samples: Samples,
    greedy_scores: Scores,
    penalty: Penalty | None = None,
) -> tuple[Columns, Metrics]:
    """ReMax: what a response earns beyond the greedy answer to its prompt; rewards come with
    tokens as for GAE."""
    rewards, mask = _token_rewards(place, sequences, scores, penalty)
    earned = {s.group: v for s, v in zip(greedy_samples, greedy_scores.values, strict=True)}
    baselines = rewards.new_zeros(len(rewards))
    for row, position in enumerate(sequences.positions):
        baselines[row] = earned[samples.samples[position].group]
    found = remax(rewards, baselines, mask)
    return _columns(sequences, *found), reward_metrics(rewards_of(scores, penalty))


def _token_rewards(
    place: Placement, sequences: Columns, scores: Scores, penalty: Penalty | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, T) float32 rewards of tokens, and their mask; one empty row where there is no sample,
    for a group may have nothing of a small batch, and still takes part in the sums."""
    masks = sequences[MASK] or [torch.zeros(0, device=place.device)]
    mask = pad_rows(masks).float()
    rewards = torch.zeros_like(mask)
    for row, position in enumerate(sequences.positions):
        if penalty is not None:
            rewards[row, : len(masks[row])] -= penalty.per_token[row]
        rewards[row, _last(masks[row])] += scores.values[position]
    return rewards, mask


def _columns(sequences: Columns, advantages: torch.Tensor, returns: torch.Tensor) -> Columns:
    """Both, (B, T), of this rank's samples."""
    lengths = [len(mask) for mask in sequences[MASK]]
    count = len(lengths)
    found = {
        ADVANTAGES: cut_rows(advantages[:count], lengths),
        RETURNS: cut_rows(returns[:count], lengths),
    }
    return Columns(sequences.positions, found)


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
