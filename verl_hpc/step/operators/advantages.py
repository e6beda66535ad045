"""Compute advantages of tokens from scores."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from verl_hpc.algorithms.advantage import Advantage, Scored
from verl_hpc.errors import TrainingError
from verl_hpc.step.batch import (
    ADVANTAGES,
    MASK,
    OLD_LOG_PROBS,
    PROCESS_REWARDS,
    RETURNS,
    SUM_P_SQUARED,
    VALUES,
    Columns,
    Samples,
    Scores,
    cut_rows,
    padded,
)
from verl_hpc.step.metrics import spread
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.kl import Penalty
from verl_hpc.step.placement import Placement


@operator("advantages")
def advantages(
    place: Placement,
    settings: Advantage,
    samples: Samples,
    sequences: Columns,
    scores: Scores,
    values: Columns | None = None,
    penalty: Penalty | None = None,
    trained: Columns | None = None,
    greedy_samples: Samples | None = None,
    greedy_scores: Scores | None = None,
    old: Columns | None = None,
    process_rewards: Columns | None = None,
) -> tuple[Columns, Metrics]:
    """Compute advantages with the chosen estimator; with values also the critic's returns.

    Raises:
        TrainingError: on every rank, if a user's estimator does not return advantages, or an
            estimator lacks an input.
    """
    rewards = torch.tensor(scores.values, dtype=torch.float64)
    if penalty is not None:
        rewards = rewards - penalty.per_sample
    rewards = rewards.to(place.device)
    masks = (trained or sequences)[MASK]

    def pad() -> tuple[torch.Tensor, torch.Tensor]:
        mask = padded(masks, place.device)
        return mask, _token_rewards(sequences, masks, mask, scores, penalty)

    policy: dict[str, torch.Tensor] = {}
    if old is not None and "sum_p_squared" in settings.needs:
        policy = {n: padded(old[n], place.device) for n in (OLD_LOG_PROBS, SUM_P_SQUARED)}
    # Estimators see all samples' scores, but only this rank's tokens; `reduce` sums over ranks.
    process = None if process_rewards is None else process_rewards[PROCESS_REWARDS]
    batch = Scored(
        scores=rewards,
        groups=torch.tensor([sample.group for sample in samples], device=place.device),
        here=torch.tensor(sequences.positions, dtype=torch.int64, device=place.device),
        pad=pad,
        values=None if values is None else padded(values[VALUES], place.device),
        greedy=None
        if greedy_samples is None or greedy_scores is None
        else _greedy(place, samples, greedy_samples, greedy_scores),
        log_probs=policy.get(OLD_LOG_PROBS),
        sum_p_squared=policy.get(SUM_P_SQUARED),
        process_rewards=None if process is None else padded(process, place.device),
        components=_components(place, scores) if "components" in settings.needs else None,
        reduce=place.reduce,
    )
    estimate = settings(batch)
    # Checked here and in `_of_tokens`, since a user's estimator may return anything.
    given = estimate if isinstance(estimate, tuple) else (estimate,)
    names = (ADVANTAGES, RETURNS) if values is not None else (ADVANTAGES,)
    if len(given) != len(names):
        raise place.alike(
            TrainingError(
                f"algorithm.advantage.name = {settings.name}: gives {len(given)} values; expected "
                f"{', '.join(names)}"
            )
        )
    columns = {
        name: _of_tokens(place, settings, batch, name, value, masks)
        for name, value in zip(names, given, strict=True)
    }
    told = columns if values is None else columns | {VALUES: values[VALUES]}
    metrics = spread("critic/rewards", rewards.tolist()) | _spreads_of_tokens(place, told, masks)
    return Columns(sequences.positions, columns), metrics


def _spreads_of_tokens(
    place: Placement, columns: Mapping[str, Sequence[torch.Tensor]], masks: Sequence[torch.Tensor]
) -> dict[str, float]:
    """Return `critic/NAME/mean`, `max` and `min` over all ranks' unmasked tokens, if there are
    any."""
    mine = {}
    if place.leads_group and masks and (counts := torch.cat([*masks]).bool()).any():
        for name, rows in columns.items():
            values = torch.cat([*rows])[counts].double().cpu()
            largest, smallest = values.max().item(), values.min().item()
            mine[name] = len(values), values.sum().item(), largest, smallest
    gathered = list(filter(None, place.control.allgather(mine)))
    metrics = {}
    for name in columns if gathered else ():
        num_tokens, sums, largest, smallest = zip(*(g[name] for g in gathered), strict=True)
        metrics[f"critic/{name}/mean"] = sum(sums) / sum(num_tokens)
        metrics[f"critic/{name}/max"] = max(largest)
        metrics[f"critic/{name}/min"] = min(smallest)
    return metrics


def _token_rewards(
    sequences: Columns,
    masks: Sequence[torch.Tensor],
    mask: torch.Tensor,
    scores: Scores,
    penalty: Penalty | None,
) -> torch.Tensor:
    """Return (B, T) rewards of tokens, less their penalty.

    The reward of a masked token goes to the last unmasked one before it. The last unmasked token
    gets the remainder of the score.
    """
    rewards = torch.zeros_like(mask)
    for row, (position, counts) in enumerate(zip(sequences.positions, masks, strict=True)):
        if penalty is not None:
            rewards[row, : len(counts)] -= penalty.per_token[row]
        earned = scores.per_token.get(position, {})
        for place, value in earned.items():
            rewards[row, _last(counts[: place + 1])] += value
        rewards[row, _last(counts)] += scores.values[position] - math.fsum(earned.values())
    return rewards


def _greedy(place: Placement, samples: Samples, answers: Samples, scores: Scores) -> torch.Tensor:
    """Return the score of the greedy answer to each sample's prompt, (N,)."""
    earned = {answer.group: v for answer, v in zip(answers, scores.values, strict=True)}
    by_sample = [earned[sample.group] for sample in samples]
    return torch.tensor(by_sample, dtype=torch.float64, device=place.device)


def _components(place: Placement, scores: Scores) -> dict[str, torch.Tensor]:
    """Return the scores, and the reward function's further numbers that all responses have, (N,)
    each."""
    rows = scores.details or [{} for _ in scores.values]
    components = {
        name: [row[name] for row in rows] for name in sorted(set.intersection(*map(set, rows)))
    }
    components["score"] = list(scores.values)
    return {
        name: torch.tensor(values, dtype=torch.float64, device=place.device)
        for name, values in components.items()
    }


def _of_tokens(
    place: Placement,
    settings: Advantage,
    batch: Scored,
    name: str,
    estimate: torch.Tensor,
    masks: Sequence[torch.Tensor],
) -> list[torch.Tensor]:
    """Return an estimate per token, (T_i,) float32 of each response here."""
    lengths = [len(mask) for mask in masks]
    if estimate.shape == batch.scores.shape:
        if not masks:
            return []
        # One tensor of all tokens: padded to the longest response there would be many times more.
        counts = torch.tensor(lengths, device=place.device)
        of_tokens = estimate[batch.here].float().repeat_interleave(counts)
        return [*(of_tokens * torch.cat([*masks]).to(of_tokens)).split(lengths)]
    if estimate.shape != batch.mask.shape:
        raise place.alike(
            TrainingError(
                f"algorithm.advantage.name = {settings.name}: gives {name} of shape "
                f"{tuple(estimate.shape)}; expected {tuple(batch.scores.shape)}, one a response of "
                f"the step, or {tuple(batch.mask.shape)}, one a token here"
            )
        )
    return cut_rows(estimate.float(), lengths)


def _last(mask: torch.Tensor) -> int:
    """Return the index of the last unmasked token; of the last token if all are masked."""
    places = mask.nonzero()
    return int(places[-1]) if len(places) else len(mask) - 1
