"""Scores to advantages, token by token."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from verl_hpc.algorithms.gae import gae
from verl_hpc.algorithms.grpo import grpo
from verl_hpc.algorithms.kl import kl_penalty
from verl_hpc.config.algorithm import GaeConfig, GrpoConfig
from verl_hpc.trainer.batch import (
    ADVANTAGES,
    OLD_LOG_PROBS,
    REF_LOG_PROBS,
    RETURNS,
    VALUES,
    Columns,
    Samples,
    cut_rows,
    length_mask,
    pad_rows,
)
from verl_hpc.trainer.operators.score import Scores
from verl_hpc.trainer.workers import Workers


@dataclass(frozen=True)
class KlInReward:
    """The KL penalty taken off the rewards of a step."""

    per_token: list[torch.Tensor]
    """Penalty, beta times KL, of this rank's samples."""
    per_sample: torch.Tensor
    """Their sums, (number of samples,) float64, of all samples and on every rank."""
    mean: float
    """Mean over samples of a response's mean KL, which verl's controller is told."""
    coefficient: float


def penalise(workers: Workers, samples: Samples, old: Columns, reference: Columns) -> KlInReward:
    """KL to the reference policy as a penalty on the reward, and its controller's next beta."""
    estimator = workers.config.algorithm.kl.chosen_estimator
    kl = [
        kl_penalty(o, r, estimator)
        for o, r in zip(old[OLD_LOG_PROBS], reference[REF_LOG_PROBS], strict=True)
    ]
    sums = torch.zeros(len(samples), dtype=torch.float64, device=workers.session.device)
    for position, row in zip(old.positions, kl, strict=True):
        sums[position] = row.double().sum()
    sums = workers.reduce(sums).cpu()
    lengths = torch.tensor([max(s.response_length, 1) for s in samples])
    mean = float((sums / lengths).mean())
    beta = workers.kl.coefficient
    workers.kl.update(mean, len(samples))
    return KlInReward([beta * k for k in kl], beta * sums, mean, beta)


def group_advantages(
    workers: Workers,
    samples: Samples,
    scores: Scores,
    old: Columns,
    penalty: KlInReward | None = None,
) -> Columns:
    """GRPO: each response against the others of its prompt, the same for all its tokens."""
    setting = workers.config.advantage
    assert isinstance(setting, GrpoConfig)
    totals = torch.tensor(scores.values, dtype=torch.float64)
    if penalty is not None:
        totals -= penalty.per_sample
    groups = torch.tensor([s.group for s in samples])
    advantages = grpo(totals, groups, setting.normalise_by_std).float()
    rows = [
        torch.full_like(row, float(advantages[i]))
        for i, row in zip(old.positions, old[OLD_LOG_PROBS], strict=True)
    ]
    return Columns(old.positions, {ADVANTAGES: rows})


def token_advantages(
    workers: Workers,
    scores: Scores,
    values: Columns,
    penalty: KlInReward | None = None,
) -> Columns:
    """GAE: the score comes with the last token, the KL penalty with every token."""
    setting = workers.config.advantage
    assert isinstance(setting, GaeConfig)
    rows = values[VALUES]
    if not rows:  # a replica may have nothing of a small batch, and still takes part in the sums
        rows = [torch.zeros(0, device=workers.session.device)]
    padded = pad_rows(rows)
    lengths = [len(row) for row in rows]
    mask = length_mask(lengths, padded.shape[1], padded.device)
    rewards = torch.zeros_like(padded)
    for row, position in enumerate(values.positions):
        if penalty is not None:
            rewards[row, : lengths[row]] -= penalty.per_token[row]
        rewards[row, lengths[row] - 1] += scores.values[position]
    advantages, returns = gae(rewards, padded, mask, setting.gamma, setting.lam, workers.reduce)
    count = len(values.positions)
    return Columns(
        values.positions,
        {
            ADVANTAGES: cut_rows(advantages, lengths)[:count],
            RETURNS: cut_rows(returns, lengths)[:count],
        },
    )
