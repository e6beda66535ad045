"""What an account and its runs have used as one page of Markdown, for a centre's final report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from verl_hpc.budget.days import DAY_S, day_of
from verl_hpc.budget.use import RunUse, added

_CENTURY_S = 36525 * DAY_S


@dataclass(frozen=True)
class Account:
    """An allocation: hours and the time in which to use them."""

    name: str
    unit: str
    """GPU-hours or core-hours."""
    granted: float | None
    used: float | None
    start: float | None
    """Seconds since the epoch; use is counted from here."""
    end: float | None
    source: str
    """Who told."""

    def runs_out(self, now: float) -> float | None:
        """When the hours are used up if they go on being used as until now; None if that cannot be
        told, or is more than a century away."""
        if not self.granted or not self.used or self.start is None or now <= self.start:
            return None
        lasting = (now - self.start) * self.granted / self.used
        return self.start + lasting if lasting < _CENTURY_S else None


@dataclass(frozen=True)
class Report:
    """All that the page says."""

    now: float
    """Seconds since the epoch."""
    account: Account | None
    runs: Sequence[RunUse]
    co2_g_per_kwh: float | None
    meter: str
    """Slurm's plug-in that metered energy; empty where it did not say."""
    problems: Sequence[str]
    """Why something is missing."""

    def as_json(self) -> dict[str, Any]:
        return {
            "time": self.now,
            "account": None if self.account is None else asdict(self.account),
            "runs": [run.as_json(self.co2_g_per_kwh) for run in self.runs],
            "meter": self.meter,
            "problems": list(self.problems),
        }


def render_page(report: Report) -> str:
    """The page as Markdown."""
    blocks = [
        [f"# Use of computing time, {_date(report.now)}"],
        list(_account(report)),
        list(_runs(report)),
        list(_waits(report.runs)),
        list(_energy(report)),
        ["## How this was counted", "", *(f"- {line}" for line in _notes(report))],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block) + "\n"


def _account(report: Report) -> Iterator[str]:
    account, now = report.account, report.now
    if account is None:
        return
    yield f"## Account {account.name}"
    yield ""
    yield f"| {account.unit} granted | used | left | from | until |"
    yield "|---:|---:|---:|---|---|"
    granted, used = account.granted, account.used
    left = None if granted is None or used is None else granted - used
    dates = f"{_date(account.start)} | {_date(account.end)}"
    yield f"| {_hours(granted)} | {_hours(used)} | {_hours(left)} | {dates} |"
    out = account.runs_out(now)
    if left is not None and left <= 0:
        yield "\nThe hours are used up."
    elif out is not None:
        yield f"\nUsed as until now, the hours last until {_date(out)}."


def _runs(report: Report) -> Iterator[str]:
    if not report.runs:
        return
    yield "## Runs"
    yield ""
    yield "| run | jobs | starts | hours | told by | waited, h | work lost, h | kWh | kg CO2 |"
    yield "|---|---:|---:|---:|---|---:|---:|---:|---:|"
    for run in report.runs:
        waited = sum(run.waits.values()) / 3600 if run.source == "sacct" else None
        lost = None if run.lost_s is None else run.lost_s / 3600
        told = "-" if run.hours is None else f"{run.hours:,.2f} {run.unit}"
        cells = (run.jobs, run.starts, told, run.source, _hours(waited), _hours(lost))
        co2 = run.as_json(report.co2_g_per_kwh)["co2_kg"]
        row = " | ".join(map(str, (run.name, *cells, _small(run.kwh), _small(co2))))
        yield f"| {row} |"
    totals = added({run.unit: run.hours or 0.0} for run in report.runs)
    sums = ", ".join(f"{hours:,.2f} {unit}-hours" for unit, hours in totals.items() if hours)
    yield f"\nTogether: {sums or 'no hours that anybody has recorded'}."


def _waits(runs: Iterable[RunUse]) -> Iterator[str]:
    if total := added(run.waits for run in runs):
        yield "## Waiting in the queue, by Slurm's reason"
        yield ""
        yield "| reason | hours |"
        yield "|---|---:|"
        yield from (f"| {reason} | {seconds / 3600:,.2f} |" for reason, seconds in total.items())


def _energy(report: Report) -> Iterator[str]:
    spent = added(run.kwh_by_operator for run in report.runs)
    if whole := sum(spent.values()):
        yield "## Energy by operator"
        yield ""
        yield "| operator | kWh | share |"
        yield "|---|---:|---:|"
        yield from (f"| {n} | {_small(kwh)} | {kwh / whole:.1%} |" for n, kwh in spent.items())


def _notes(report: Report) -> Iterator[str]:
    runs, sources = report.runs, {run.source for run in report.runs}
    if "sacct" in sources:
        yield (
            "Hours by sacct are those of the GPUs that jobs were given, or of cores where they "
            "have none, over all starts of requeued jobs, without time for which Slurm suspended "
            "them."
        )
    if "own records" in sources:
        yield (
            "Hours by a run's own records go from each start of its job to its last sign of life, "
            "at most 10 s before it was killed. Slurm may charge some seconds more."
        )
    if runs:
        yield (
            "Work lost is the time of steps that no checkpoint has, by the run's own records: "
            "after a kill they were done again, or are missing."
        )
    yield from _energy_notes(report)
    if report.co2_g_per_kwh is not None:
        yield f"CO2 is {report.co2_g_per_kwh:g} g for a kWh, as the site profile says."
    if report.account is not None:
        yield f"The account's hours are by {report.account.source}."
    if not runs:
        yield "No run is below runs/ here: give run directories, or start this where runs/ is."
    yield from report.problems


def _energy_notes(report: Report) -> Iterator[str]:
    runs = report.runs
    by_sacct = [run for run in runs if run.joules is not None]
    measured = [run for run in runs if run.measured]
    if by_sacct:
        meter = report.meter or "not known"
        yield f"Energy of runs is sacct's ConsumedEnergy, of whole nodes; the meter is {meter}."
        part = [f"{x.name} {x.metered_share:.0%}" for x in by_sacct if 0 < x.metered_share < 0.995]
        if part:
            yield f"Only a part of the time of these runs was metered: {', '.join(part)}."
    own = [run.name for run in measured if run.joules is None]
    if own:
        yield (
            f"Energy of {', '.join(own)} is what the ranks' own meters counted in steps that were "
            "kept: starts, lost work, fans, power supplies and the network are not in it."
        )
    meters = {name.partition("/")[0] for run in measured for name in run.measured}
    if "nvml" in meters:
        yield "An operator's energy has that of the run's GPUs (NVML), counted while it ran."
    if "rapl" in meters:
        yield (
            "An operator's energy has that of CPUs and memory (RAPL), counted while it ran. RAPL "
            "counts whole nodes: on shared ones, the jobs of others are in it."
        )
    elif "nvml" in meters:
        yield "CPUs and memory are not in it: RAPL was not there, or is for root alone to read."
    if any(not run.measured for run in by_sacct):
        yield (
            "In a run without meters of its own, an operator's energy is its share of the run's "
            "time, not a measurement."
        )
    if runs and not by_sacct and not measured:
        yield "Energy is not known: sacct has none, and ranks found no meter (NVML, RAPL)."


def _hours(hours: float | None) -> str:
    return "-" if hours is None else f"{hours:,.2f}"


def _small(value: float | None) -> str:
    return "-" if value is None else f"{value:,.4g}"


def _date(time: float | None) -> str:
    return "-" if time is None else day_of(time)
