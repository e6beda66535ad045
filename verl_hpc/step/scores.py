"""Scores of the samples of a step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from verl_hpc.step.metrics import spread


@dataclass(frozen=True)
class Scores:
    """Scores of all samples of a step, equal on every rank."""

    values: Sequence[float]
    """Score of each sample, by position."""
    num_failed: int = 0
    """Calls of the reward function that failed and scored 0."""
    extra: Mapping[str, float] | None = None
    """Means of further numbers that the reward function returned."""
    details: Sequence[Mapping[str, float]] = ()
    """The further numbers of each sample, by position."""
    per_token: Mapping[int, Mapping[int, float]] = field(default_factory=dict)
    """Rewards of a response's tokens by their index, by position, if the reward function returned a
    list. The last token gets the rest of the response's value."""

    @property
    def metrics(self) -> dict[str, float]:
        found = spread("critic/score", self.values)
        found |= {f"reward/{name}": value for name, value in (self.extra or {}).items()}
        if self.num_failed:
            found["reward/num_failed"] = float(self.num_failed)
        return found
