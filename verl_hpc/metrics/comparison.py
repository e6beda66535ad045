"""Compare runs: what their settings differ in, what they scored, and their curves as seeds' means.

Runs that differ in nothing but their seed are one group, drawn as a mean with a band from the least
to the largest value.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from statistics import mean
from typing import Any, Literal

from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import (
    PAIR_LOSS,
    PREFERENCE_LOSS,
    SCORE,
    SFT_LOSS,
    STEP_SECONDS,
    TOKENS,
    VALIDATION,
)

Axis = Literal["step", "tokens", "hours"]
SEED = "seed"
_NAMES = ("name", "directory")
"""Settings that say nothing of what a run computes."""
OUTCOMES: Mapping[str, str] = {
    VALIDATION: "evaluation score",
    SCORE: "reward",
    SFT_LOSS: "SFT loss",
    PAIR_LOSS: "loss of pairs",
    PREFERENCE_LOSS: "preference loss",
}
"""Metrics by which runs are ranked, with their labels: the first one that a run has."""
_LOSSES = (SFT_LOSS, PAIR_LOSS, PREFERENCE_LOSS)


@dataclass(frozen=True)
class Compared:
    """A run to compare."""

    name: str
    rows: Sequence[Row]
    """Lines of its metrics.jsonl, in order."""
    settings: Mapping[str, Any]
    """Its resolved configuration by dotted name."""
    ranks: int | None
    """Number of its ranks; None where no file says so."""

    @property
    def steps(self) -> int:
        return int(self.rows[-1]["step"]) if self.rows else 0

    @property
    def hours(self) -> float:
        """Hours of its steps, with their evaluations and saves."""
        return self._so_far(STEP_SECONDS, 3600.0)[-1] if self.rows else 0.0

    @property
    def rank_hours(self) -> float | None:
        return None if self.ranks is None else self.hours * self.ranks

    @property
    def tokens(self) -> float:
        return self._so_far(TOKENS, 1.0)[-1] if self.rows else 0.0

    def along(self, axis: Axis) -> list[float]:
        """Return the place of each row on an axis: its step, or the tokens or hours up to its
        end."""
        if axis == "step":
            return [float(row["step"]) for row in self.rows]
        name, unit = (TOKENS, 1.0) if axis == "tokens" else (STEP_SECONDS, 3600.0)
        return self._so_far(name, unit)

    def _so_far(self, name: str, unit: float) -> list[float]:
        return list(accumulate((row.get(name) or 0.0) / unit for row in self.rows))


@dataclass(frozen=True)
class Group:
    """Runs that differ in their seed alone."""

    label: str
    runs: Sequence[Compared]

    def curve(self, name: str, axis: Axis) -> list[tuple[float, float, float, float]]:
        """Return a metric at the steps at which all runs have it: the place on the axis, mean,
        least and largest value. Places are means too, since seeds take different times."""
        by_run: list[dict[int, tuple[float, float]]] = []
        for run in self.runs:
            places = zip(run.rows, run.along(axis), strict=True)
            by_run.append(
                {row["step"]: (x, row[name]) for row, x in places if row.get(name) is not None}
            )
        shared = [step for step in by_run[0] if all(step in one for one in by_run)]
        curve = []
        for step in shared:
            xs, values = zip(*(one[step] for one in by_run), strict=True)
            curve.append((mean(xs), mean(values), min(values), max(values)))
        return curve


def differing(runs: Sequence[Compared]) -> dict[str, list[Any]]:
    """Return the settings in which runs differ, by dotted name, with the value of each run."""
    names = dict.fromkeys(name for run in runs for name in run.settings if name not in _NAMES)
    values = {name: [run.settings.get(name) for run in runs] for name in names}
    return {name: own for name, own in values.items() if any(v != own[0] for v in own)}


def groups_of(runs: Sequence[Compared]) -> list[Group]:
    """Return runs by group, in order; a group is named by its settings that differ from others',
    or by its runs where these are too many to read."""
    differ = [name for name in differing(runs) if name != SEED]
    by_values: dict[tuple[str, ...], list[Compared]] = {}
    for run in runs:
        by_values.setdefault(tuple(str(run.settings.get(n)) for n in differ), []).append(run)
    groups = []
    for values, own in by_values.items():
        words = ", ".join(f"{n}={value}" for n, value in zip(differ, values, strict=True))
        label = words if len(own) > 1 and 0 < len(words) <= _LONGEST_LABEL else own[0].name
        groups.append(Group(label if len(own) == 1 else f"{label} ({len(own)} seeds)", own))
    return groups


_LONGEST_LABEL = 60


def outcome(runs: Sequence[Compared]) -> str | None:
    """Return the metric of `OUTCOMES` by which to rank runs; None if no run has any."""
    present = {name for run in runs for row in run.rows for name in row if row[name] is not None}
    return next((name for name in OUTCOMES if name in present), None)


def final(run: Compared, name: str) -> float | None:
    """Return a metric at the end of a run: its last evaluation, or for what each step has the mean
    of the last tenth of the steps, at least one."""
    values = [row[name] for row in run.rows if row.get(name) is not None]
    if not values:
        return None
    return float(values[-1] if name == VALIDATION else mean(values[-max(1, len(values) // 10) :]))


def best_first(runs: Sequence[Compared], name: str) -> list[Compared]:
    """Return runs by their final figure, the best first and those without one last."""
    sign = 1.0 if name in _LOSSES else -1.0

    def place(run: Compared) -> tuple[bool, float]:
        value = final(run, name)
        return value is None, sign * (value or 0.0)

    return sorted(runs, key=place)


def front(points: Sequence[tuple[float, float]], largest: bool) -> Iterator[tuple[float, float]]:
    """Yield the points of (cost, figure) that none with less cost equals or exceeds (V. Pareto).

    Args:
        largest: whether the largest figure is the best, or the least.
    """
    best: float | None = None
    for cost, value in sorted(points, key=lambda p: (p[0], -p[1] if largest else p[1])):
        if best is None or (value > best if largest else value < best):
            best = value
            yield cost, value


def is_loss(name: str) -> bool:
    """Whether less is better."""
    return name in _LOSSES
