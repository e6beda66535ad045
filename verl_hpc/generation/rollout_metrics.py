"""Metrics of a rollout: turns, failed environment steps, staleness of weights."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from verl_hpc.generation.failures import some_reasons
from verl_hpc.step.batch import MASK, VERSIONS, Columns
from verl_hpc.step.placement import Placement

_logger = logging.getLogger(__name__)

TURNS_MEAN, TURNS_MAX = "rollout/turns/mean", "rollout/turns/max"
STEPS_FAILED = "rollout/environment/num_failed"


def turn_metrics(place: Placement, columns: Columns, failures: Sequence[str]) -> dict[str, float]:
    """Return metrics of the model's turns per response, and of failed environment steps."""
    counts = [_num_turns(mask) for mask in columns[MASK]]
    mine = (counts, len(failures), some_reasons(failures))
    gathered = place.allgather(mine if place.leads_group else ([], 0, []))
    turns = [count for counts, _, _ in gathered for count in counts]
    num_failed = sum(failed for _, failed, _ in gathered)
    if num_failed and place.leads:
        _logger.warning(
            "%s conversations ended because a step of their environment failed: %s",
            num_failed,
            "; ".join(some_reasons(r for _, _, part in gathered for r in part)),
        )
    return {
        TURNS_MEAN: sum(turns) / max(len(turns), 1),
        TURNS_MAX: float(max(turns, default=0)),
        STEPS_FAILED: float(num_failed),
    }


def _num_turns(mask: torch.Tensor) -> int:
    """Count the runs of ones in a (T,) mask."""
    before = torch.cat([mask.new_zeros(1), mask[:-1]])
    return int(((mask == 1) & (before == 0)).sum())


def lag_metrics(place: Placement, step: int, columns: Columns) -> dict[str, float]:
    """Return by how many steps the tokens' weights are older than those that train on them."""
    lags = [step - 1 - row for row in columns[VERSIONS]]
    sums = (sum(int(row.sum()) for row in lags), sum(len(row) for row in lags))
    largest = max([int(row.max()) for row in lags if len(row)], default=0)
    gathered = place.allgather((*sums, largest) if place.leads_group else (0, 0, 0))
    total, count, most = (
        sum(g[0] for g in gathered), sum(g[1] for g in gathered), max(g[2] for g in gathered)
    )  # fmt: skip
    return {"rollout/lag/mean": total / max(count, 1), "rollout/lag/max": float(most)}
