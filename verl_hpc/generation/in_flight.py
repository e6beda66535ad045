"""Responses in flight: begun for a later step, and continued there under the weights of then."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from verl_hpc.generation.rollout import Rollout
from verl_hpc.generation.slots import GenerateSettings, SlotKey
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Feed, FeedAround, Response
from verl_hpc.step.batch import VERSIONS, Columns, StepRows
from verl_hpc.step.placement import Placement


class InFlight(FeedAround):
    """A feed that ends the call once the responses of this step are finished.

    Args:
        feed: requests of this step and of later ones.
        needed: indices of those of this step.
    """

    def __init__(self, feed: Feed, needed: Collection[int]) -> None:
        super().__init__(feed)
        self._needed = needed

    def stops(self, asks: bool) -> bool:
        return super().stops(asks) or self.finished.issuperset(self._needed)


def begun_before(
    rollout: Rollout, settings: GenerateSettings, step: int
) -> dict[SlotKey, Response]:
    """Return this engine's responses of a step and of later ones that earlier steps have begun."""
    return {
        (which.step, which.slot): response
        for which, response in rollout.ahead.items()
        if which.purpose == settings.purpose and which.step >= step
    }


def remember(
    rollout: Rollout, settings: GenerateSettings, rows: StepRows, known: Mapping[SlotKey, Response]
) -> None:
    """Store the known responses for checkpoints until the step has trained."""
    count = len(rows.rows) * settings.num_samples
    others = {w: r for w, r in rollout.ahead.items() if w.purpose != settings.purpose}
    mine = {ResponseId(settings.purpose, *key, count): known[key] for key in known}
    rollout.ahead = others | mine


def lag_metrics(place: Placement, step: int, columns: Columns) -> dict[str, float]:
    """Return by how many steps the tokens' weights are older than those that train on them."""
    lags = [step - 1 - row for row in columns[VERSIONS]]
    sums = (sum(int(row.sum()) for row in lags), sum(len(row) for row in lags))
    largest = max([int(row.max()) for row in lags if len(row)], default=0)
    gathered = place.control.allgather((*sums, largest) if place.leads_group else (0, 0, 0))
    total, count, most = (
        sum(g[0] for g in gathered), sum(g[1] for g in gathered), max(g[2] for g in gathered)
    )  # fmt: skip
    return {"rollout/lag/mean": total / max(count, 1), "rollout/lag/max": float(most)}
