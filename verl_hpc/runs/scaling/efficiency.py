"""Compute strong and weak scaling from runs of different sizes, and check what may be compared.

Parallel efficiency of N ranks against the smallest size b, as computing centres define it:
p_b T_b / (p_N T_N) at the same batch (strong), T_b / T_N at the same batch a rank (weak).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from verl_hpc.errors import ConfigError

TARGET = 0.75
"""Least efficiency that computing centres ask for."""
FREE = (
    "name", "directory", "steps", "epochs", "parallel", "offload", "batch.size",
    "batch.max_tokens_per_micro_batch", "rollout.tensor_parallel", "rollout.grouping",
    "rollout.max_num_seqs", "rollout.gpu_memory_utilization", "rollout.kv_cache_gib",
    "rollout.enforce_eager", "data.evaluation", "evaluation", "checkpoint", "metrics", "runtime",
)  # fmt: skip
"""Settings, and sections, that do not change what a step computes, except for the batch's size."""


@dataclass(frozen=True)
class Measured:
    """One run, and its seconds over the steps that all runs have in common."""

    name: str
    nodes: int
    ranks: int
    batch: int
    """Prompts a step; examples in SFT."""
    on_gpus: bool
    seconds: tuple[float, ...]
    """Seconds of each compared step, without evaluation and saves."""
    tokens_per_s: float | None
    operators: Mapping[str, float]
    """Mean seconds a step, by operator."""
    rank_hours: float
    """Rank-hours of all its steps, with evaluation and saves."""
    settings: Mapping[str, Any]
    """The resolved configuration by dotted name."""

    @property
    def step_s(self) -> float:
        return mean(self.seconds)


@dataclass(frozen=True)
class Point:
    """A run in a table, with its ideal figures."""

    run: Measured
    ideal_s: float
    speedup: float
    ideal_speedup: float
    efficiency: float

    @property
    def is_enough(self) -> bool:
        return self.efficiency >= TARGET


def check_comparable(runs: Sequence[Measured]) -> None:
    """Refuse runs that do not compute the same thing.

    Raises:
        ConfigError: a setting differs that should not; each is named with its values.
    """
    first = runs[0]
    for run in runs[1:]:
        names = sorted({*first.settings, *run.settings})
        differ = [
            name
            for name in names
            if not _is_free(name) and first.settings.get(name) != run.settings.get(name)
        ]
        if differ:
            shown = "; ".join(
                f"{name} = {first.settings.get(name)} and {run.settings.get(name)}"
                for name in differ[:5]
            )
            more = f"; and {len(differ) - 5} more" if len(differ) > 5 else ""
            raise ConfigError(
                f"{first.name} and {run.name} do not compute the same: {shown}{more}. Compare runs "
                "that differ in ranks, layout and batch.size alone"
            )
    if len({run.on_gpus for run in runs}) > 1:
        raise ConfigError("some of these runs were on GPUs and some on CPUs; compare one kind")


def strong_tables(runs: Sequence[Measured]) -> dict[int, list[Point]]:
    """Return points by batch, for every batch that runs of several sizes share."""
    return {int(key): _points(group, True) for key, group in _groups(runs, lambda r: r.batch)}


def weak_tables(runs: Sequence[Measured]) -> dict[float, list[Point]]:
    """Return points by batch per rank, for each one that runs of several sizes share."""
    groups = _groups(runs, lambda run: run.batch / run.ranks)
    return {key: _points(group, False) for key, group in groups}


def check_tables(runs: Sequence[Measured]) -> None:
    """Refuse a run that is in no table, because its batch fits no other run's.

    Raises:
        ConfigError: such a run, with batches that would fit.
    """
    tables = [*strong_tables(runs).values(), *weak_tables(runs).values()]
    placed = {point.run.name for points in tables for point in points}
    for run in runs:
        if run.name not in placed:
            other = next(r for r in runs if r is not run)
            weak = other.batch * run.ranks / other.ranks
            raise ConfigError(
                f"{run.name}: batch.size = {run.batch} on {run.ranks} ranks goes with no other "
                f"run: beside {other.name} ({other.batch} on {other.ranks} ranks), strong scaling "
                f"needs another number of ranks and the same batch, weak scaling {weak:g}"
            )


def scales_to(points: Sequence[Point]) -> int:
    """Return the largest number of ranks up to which every size has a run that reaches `TARGET`."""
    reached = points[0].run.ranks
    for ranks in sorted({point.run.ranks for point in points}):
        if not any(p.is_enough for p in points if p.run.ranks == ranks):
            break
        reached = ranks
    return reached


def _is_free(name: str) -> bool:
    return any(name == free or name.startswith(f"{free}.") for free in FREE)


def _groups(
    runs: Sequence[Measured], key: Callable[[Measured], float]
) -> Iterator[tuple[float, list[Measured]]]:
    for value in sorted({key(run) for run in runs}):
        group = [run for run in runs if key(run) == value]
        if len({run.ranks for run in group}) > 1:
            yield value, sorted(group, key=lambda run: (run.ranks, run.step_s))


def _points(runs: Sequence[Measured], is_strong: bool) -> list[Point]:
    base = runs[0]  # of the smallest size the fastest
    points = []
    for run in runs:
        growth = run.ranks / base.ranks
        ideal_s = base.step_s / growth if is_strong else base.step_s
        speedup = base.step_s / run.step_s * (1.0 if is_strong else growth)
        points.append(Point(run, ideal_s, speedup, growth, ideal_s / run.step_s))
    return points
