"""Scores to advantages, token by token."""

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
    cut_rows,
    padded,
)
from verl_hpc.step.metrics import spread
from verl_hpc.step.operator import Metrics, operator
from verl_hpc.step.operators.kl import Penalty
from verl_hpc.step.placement import Placement
from verl_hpc.step.scores import Scores


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
    """What the chosen estimator makes of the scores; with values also the critic's returns.

    Raises:
        TrainingError: on every rank, if a user's estimator gives something else than advantages, or
            one is not given what it needs.
    """
    rewards = rewards_of(scores, penalty).to(place.device)
    masks = (trained or sequences)[MASK]
    mask = padded(masks, place.device)
    needs_squares = "sum_p_squared" in settings.needs

    def of_policy(name: str) -> torch.Tensor | None:
        return padded(old[name], place.device) if old is not None and needs_squares else None

    process = None if process_rewards is None else process_rewards[PROCESS_REWARDS]
    batch = Scored(
        scores=rewards,
        groups=torch.tensor([sample.group for sample in samples], device=place.device),
        here=torch.tensor(sequences.positions, dtype=torch.int64, device=place.device),
        mask=mask,
        rewards=_token_rewards(sequences, masks, mask, scores, penalty),
        values=None if values is None else padded(values[VALUES], place.device),
        greedy=_greedy(place, samples, greedy_samples, greedy_scores),
        log_probs=of_policy(OLD_LOG_PROBS),
        sum_p_squared=of_policy(SUM_P_SQUARED),
        process_rewards=None if process is None else padded(process, place.device),
        components=_components(place, scores) if "components" in settings.needs else None,
        reduce=place.reduce,
    )
    found = settings(batch)
    given = found if isinstance(found, tuple) else (found,)
    names = (ADVANTAGES, RETURNS) if values is not None else (ADVANTAGES,)
    if len(given) != len(names):
        raise place.alike(
            TrainingError(
                f"algorithm.advantage.name = {settings.name}: gives {len(given)} values; expected "
                f"{', '.join(names)}"
            )
        )
    lengths = [len(row) for row in sequences[MASK]]
    columns = {
        name: cut_rows(_of_tokens(place, settings, batch, name, value), lengths)
        for name, value in zip(names, given, strict=True)
    }
    told = columns if values is None else columns | {VALUES: values[VALUES]}
    metrics = reward_metrics(rewards) | _spreads_of_tokens(place, told, masks)
    return Columns(sequences.positions, columns), metrics


def _spreads_of_tokens(
    place: Placement,
    columns: Mapping[str, Sequence[torch.Tensor]],
    masks: Sequence[torch.Tensor],
) -> dict[str, float]:
    """`critic/NAME/mean`, `max` and `min` over the tokens of all ranks that count; nothing where
    none does."""
    mine = {}
    if place.leads_group and any(mask.any() for mask in masks):
        mine = {name: _sums(rows, masks) for name, rows in columns.items()}
    gathered = [of_rank for of_rank in place.allgather(mine) if of_rank]
    found = {}
    for name in columns if gathered else ():
        counts, sums, largest, smallest = zip(*(g[name] for g in gathered), strict=True)
        found[f"critic/{name}/mean"] = sum(sums) / sum(counts)
        found[f"critic/{name}/max"] = max(largest)
        found[f"critic/{name}/min"] = min(smallest)
    return found


def _sums(
    rows: Sequence[torch.Tensor], masks: Sequence[torch.Tensor]
) -> tuple[int, float, float, float]:
    """How many tokens count, their sum, their largest and their smallest value."""
    counted = zip(rows, masks, strict=True)
    values = torch.cat([row[mask.bool()].double().cpu() for row, mask in counted])
    return len(values), values.sum().item(), values.max().item(), values.min().item()


def _token_rewards(
    sequences: Columns,
    masks: Sequence[torch.Tensor],
    mask: torch.Tensor,
    scores: Scores,
    penalty: Penalty | None,
) -> torch.Tensor:
    """(B, T): what each token earns, less its penalty.

    What a token earns that does not count belongs to the last one before it that does. The last of
    all earns what the score has beyond that.
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


def _greedy(
    place: Placement, samples: Samples, answers: Samples | None, scores: Scores | None
) -> torch.Tensor | None:
    """(N,) score of the greedy answer to each sample's prompt."""
    if answers is None or scores is None:
        return None
    earned = {answer.group: v for answer, v in zip(answers, scores.values, strict=True)}
    found = [earned[sample.group] for sample in samples]
    return torch.tensor(found, dtype=torch.float64, device=place.device)


def _components(place: Placement, scores: Scores) -> dict[str, torch.Tensor]:
    """(N,) each: the numbers that were returned for every response, and the scores."""
    rows = scores.details or [{} for _ in scores.values]
    found = {
        name: [row[name] for row in rows] for name in sorted(set.intersection(*map(set, rows)))
    }
    found["score"] = list(scores.values)
    return {
        name: torch.tensor(values, dtype=torch.float64, device=place.device)
        for name, values in found.items()
    }


def _of_tokens(
    place: Placement, settings: Advantage, batch: Scored, name: str, found: torch.Tensor
) -> torch.Tensor:
    """(B, T) float32."""
    if found.shape == batch.scores.shape:
        found = batch.of_tokens(found)
    if found.shape != batch.mask.shape:
        raise place.alike(
            TrainingError(
                f"algorithm.advantage.name = {settings.name}: gives {name} of shape "
                f"{tuple(found.shape)}; expected {tuple(batch.scores.shape)}, one a response of "
                f"the step, or {tuple(batch.mask.shape)}, one a token here"
            )
        )
    return found.float()


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
