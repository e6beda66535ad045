"""What one run has used in all starts of its jobs: hours, waiting, lost work and energy."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from verl_hpc.runs.lives import RunLife, lost_seconds
from verl_hpc.slurm.accounting import Life

OUTSIDE = "outside of kept steps"
"""Starting, ending, waiting for each other, and steps that were lost."""
JOULES_PER_KWH = 3.6e6

Unit = Literal["GPU", "core", "rank"]


@dataclass(frozen=True)
class RunRecords:
    """What a run's own files tell."""

    name: str
    job_ids: tuple[str, ...] = ()
    """Submitted for it or named by its starts; several of a chain."""
    lives: tuple[RunLife, ...] = ()
    operators: Mapping[str, float] = field(default_factory=dict)
    """Seconds by operator of all steps that were kept."""
    measured: Mapping[str, float] = field(default_factory=dict)
    """Joules that ranks' own meters counted in those steps, as `nvml/rollout`."""
    unsaved_s: float | None = 0.0
    """Seconds of whole steps after the newest checkpoint; None while the run is under way."""


@dataclass(frozen=True)
class RunUse:
    """Sums over a run."""

    name: str
    jobs: int
    starts: int
    unit: Unit
    hours: float | None
    """GPU-hours; core-hours by Slurm of jobs without GPUs, rank-hours by the run's own records."""
    source: Literal["sacct", "own records", "nothing"]
    waits: Mapping[str, float]
    """Seconds in the queue by Slurm's reason; empty without accounts."""
    lost_s: float | None
    """Seconds of steps that were done and not saved, or given up; None without records."""
    joules: float | None
    """Joules of whole nodes by sacct; None where Slurm meters nothing."""
    metered_share: float
    """Part of the run's seconds for which sacct has joules."""
    operators: Mapping[str, float]
    """Share of the run's time by operator, and OUTSIDE of them; empty without metrics."""
    measured: Mapping[str, float]
    """Joules that ranks' own meters counted, as `nvml/rollout`; empty without such meters."""

    @property
    def meters(self) -> tuple[str, ...]:
        """Who counted `kwh`: sacct, or the ranks' own meters; nobody if it is empty."""
        if self.joules is not None:
            return ("sacct",)
        return tuple(sorted({name.partition("/")[0] for name in self.measured}))

    @property
    def kwh(self) -> float | None:
        """Energy of the run by `meters`; None if nobody has counted it."""
        joules = sum(self.measured.values()) if self.joules is None else self.joules
        return joules / JOULES_PER_KWH if self.meters else None

    @property
    def kwh_by_operator(self) -> dict[str, float]:
        """Measured energy, where ranks have meters; else shares of `kwh` by time."""
        if self.measured:
            parts = ({name.partition("/")[2]: j} for name, j in self.measured.items())
            return {name: joules / JOULES_PER_KWH for name, joules in added(parts).items()}
        return {name: (self.kwh or 0.0) * share for name, share in self.operators.items()}

    def as_json(self, co2_g_per_kwh: float | None) -> dict[str, Any]:
        """Plain values; seconds, hours, kWh and kg."""
        kwh = self.kwh
        co2 = None if kwh is None or co2_g_per_kwh is None else kwh * co2_g_per_kwh / 1000
        return {
            "run": self.name,
            "jobs": self.jobs,
            "starts": self.starts,
            "unit": f"{self.unit}-hours",
            "hours": self.hours,
            "source": self.source,
            "wait_s_by_reason": dict(self.waits),
            "lost_s": self.lost_s,
            "kwh": kwh,
            "kwh_by": list(self.meters),
            "metered_share": self.metered_share,
            "kwh_by_operator": self.kwh_by_operator,
            "operators_by": sorted({name.partition("/")[0] for name in self.measured}) or ["time"],
            "co2_kg": co2,
        }


def use_of(run: RunRecords, accounts: Iterable[Life] | None, now: float) -> RunUse:
    """Add up a run.

    Args:
        run: its own records.
        accounts: every start of its jobs, as sacct tells them; None where there are no accounts.
        now: seconds since the epoch.
    """
    own = list(run.lives)
    told = [life for life in accounts or () if life.job_id in run.job_ids]
    started = [life for life in told if life.started is not None and life.elapsed_s > 0]
    elapsed = sum(life.elapsed_s for life in started) or sum(x.seen - x.began for x in own)
    metered = [life for life in started if life.joules is not None]
    unit, hours, source = _hours(started, own) if started else _own_hours(own)
    return RunUse(
        name=run.name,
        jobs=len(run.job_ids),
        # A component of a heterogeneous job starts and waits together with the others.
        starts=len({(x.job_id, x.started) for x in started}) if started else len(own),
        unit=unit,
        hours=hours,
        source=source,
        waits=_waits(told, now),
        lost_s=lost_seconds(own, run.unsaved_s) if own else None,
        joules=sum(life.joules or 0.0 for life in metered) if metered else None,
        metered_share=sum(life.elapsed_s for life in metered) / elapsed if elapsed else 0.0,
        operators=_shares(run.operators, elapsed),
        measured=run.measured,
    )


def _hours(
    started: Sequence[Life], own: Sequence[RunLife]
) -> tuple[Unit, float, Literal["sacct", "own records"]]:
    gpus = sum(life.gpus * life.elapsed_s for life in started) / 3600
    if gpus:
        return "GPU", gpus, "sacct"
    if any(life.unit == "GPU" for life in own):  # a cluster that does not account for its GPUs
        return "GPU", sum(life.hours for life in own), "own records"
    return "core", sum(life.cpus * life.elapsed_s for life in started) / 3600, "sacct"


def _own_hours(
    own: Sequence[RunLife],
) -> tuple[Unit, float | None, Literal["own records", "nothing"]]:
    if not own:
        return "GPU", None, "nothing"
    return own[-1].unit, sum(life.hours for life in own), "own records"


def added(parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Sums by name, the largest first."""
    total: dict[str, float] = {}
    for part in parts:
        for name, value in part.items():
            total[name] = total.get(name, 0.0) + value
    return dict(sorted(total.items(), key=lambda item: -item[1]))


def _waits(lives: Iterable[Life], now: float) -> dict[str, float]:
    return added({(life.job_id, life.submitted): life.waits(now) for life in lives}.values())


def _shares(operators: Mapping[str, float], elapsed_s: float) -> dict[str, float]:
    """Operators that overlap may sum to more than the run took: they share its time then."""
    total = sum(operators.values())
    if not total or not elapsed_s:
        return {}
    whole = max(total, elapsed_s)
    found = {name: seconds / whole for name, seconds in operators.items()}
    return {**found, OUTSIDE: 1 - total / whole}
