"""Factors fitted to runs: least squares of relative errors on the seconds of operators.

A prediction is linear in its factors (`cost.Efficiency`), so that each operator of each run is one
equation. Factors that no equation has stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from operator import mul
from statistics import fmean, median
from typing import Any

from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.timing.cost import (
    CPU_RANKS,
    FRACTIONS,
    TERMS,
    Cost,
    Efficiency,
    Term,
    with_factors,
)
from verl_hpc.planner.timing.least_squares import inverse, solve
from verl_hpc.planner.timing.lengths import Lengths
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import RESHARD, predict_step
from verl_hpc.planner.timing.workload import Workload, workload_of

CPU_SECONDS, SECONDS = "cpu_s/", "timing_s/"
"""Prefixes of the metrics that measure operators: CPU time, or wall-clock time."""
_PULL = 0.2
"""Weight of a factor's prior: a change by a factor of e costs as much as one operator that is off
by 20 %, the scatter of equal work between runs on shared cores."""
_LEAST_RATIO = 1e-3
_REWEIGHTED = 8
"""Rounds of reweighting, in which weighted squares stand in for squared logarithms."""
_MOST_FRACTION = 1e3
"""Most that a fraction of a core's peak may be, since that peak is a round figure."""
_LEAST_SHARE = 0.002
"""Operators below this share of a step are left out as noise."""
_HELD = 0.5
"""A factor is undetermined if the runs leave more than this share of its prior variance."""
_CONFUSED = -0.3
"""Two factors are confused if their correlation is below this: one makes up for the other."""
LEAST_CPU_SECONDS = 0.01
"""Operators below this are left out too: CPU clocks and caches are no finer."""


@dataclass(frozen=True)
class Measured:
    """A run's operators as they were, and what they consist of."""

    name: str
    seconds: Mapping[str, float]
    """Seconds of each operator in the median step, since single steps are disturbed."""
    costs: Mapping[str, Cost]
    on_gpu: bool
    """Whether its peaks are those of a data sheet, which nothing exceeds."""


@dataclass(frozen=True)
class Error:
    """How far off a prediction is."""

    run: str
    operator: str
    measured: float
    predicted: float

    @property
    def relative(self) -> float:
        return self.predicted / self.measured - 1.0


@dataclass(frozen=True)
class Undetermined:
    """A factor that stays near its initial value, because the runs hardly constrain it."""

    term: Term
    instead: Sequence[Term]
    """Terms that absorb its share; empty if hardly any operator depends on it."""


@dataclass(frozen=True)
class Fit:
    """Factors, and how well they describe the runs that they are fitted to."""

    efficiency: Efficiency
    errors: Sequence[Error]
    fitted: Sequence[str]
    """Factors that operators of the runs depend on; the others are as before."""
    undetermined: Sequence[Undetermined] = ()
    """Fitted factors that the runs hardly constrain."""


def workload_measured(config: RunConfig, rows: Sequence[Mapping[str, Any]]) -> Workload:
    """The work of a run's mean step, by the lengths that it had.

    Args:
        config: of the run.
        rows: of its metrics, a step each.
    """
    response, prompt = (_mean(rows, f"{what}_length/mean") for what in ("response", "prompt"))
    longest = config.rollout.max_response_tokens
    lengths = None
    if response is not None:
        # As long as they can be, or all alike, they have no spread.
        spread = 0.0 if response > 0.98 * longest else Lengths.spread
        lengths = Lengths(min(max(response, 1.0), longest), longest, spread)
    return workload_of(config, prompt, lengths)


def measured(
    name: str,
    config: RunConfig,
    archs: Mapping[str, Architecture] | Architecture,
    layouts: RunLayouts,
    rows: Sequence[Mapping[str, Any]],
    machine: Machine,
    by: str = SECONDS,
) -> Measured:
    """Extract an operator's seconds and cost for each operator of a run.

    Args:
        name: of the run, for tables.
        config: of the run.
        archs: of every role's model by its name, or one for all.
        layouts: of the run.
        rows: of metrics.jsonl, of steps whose operators are all in; the first steps, in which
            kernels are compiled and memory is allocated, are better left out.
        machine: what it ran on.
        by: CPU_SECONDS or SECONDS.

    Raises:
        ConfigError: no row has seconds of operators.
    """
    if by == CPU_SECONDS:
        # Those of rank 0, unless roles are on ranks of their own: then of the rank with most.
        machine = replace(machine, counts_waiting=False, of_first_rank=not layouts.is_split)
    work = workload_measured(config, rows)
    step = predict_step(config, archs, layouts, machine, work=work)
    seconds = {
        operator: median(values) if (values := _values(rows, f"{by}{operator}")) else None
        for operator in step.costs
    }
    total = sum(value or 0.0 for value in seconds.values())
    least = max(_LEAST_SHARE * total, LEAST_CPU_SECONDS if by == CPU_SECONDS else 0.0)
    # A transfer between GPUs is simulated over links, and not linear in any factor.
    left_out = {RESHARD} if machine.hardware.kind.is_gpu else set()
    kept = {
        operator: value
        for operator, value in seconds.items()
        if value is not None and value > least and operator not in left_out
    }
    if not kept and by == CPU_SECONDS and any(_values(rows, f"{SECONDS}{o}") for o in step.costs):
        raise ConfigError(
            f"{name}: it recorded no CPU seconds ({by}NAME of metrics.jsonl), since an older "
            "version made it; use --by clock"
        )
    if not kept:
        raise ConfigError(
            f"{name}: its metrics have no {by}NAME of an operator; let it do a few more steps"
        )
    costs = {operator: step.costs[operator] for operator in kept}
    return Measured(name, kept, costs, machine.hardware.kind.is_gpu)


def calibrate(runs: Sequence[Measured], before: Efficiency | None = None) -> Fit:
    """Fit the factors to runs; to separate terms, these need two or more layouts.

    Args:
        runs: on machines of one kind.
        before: prior factors, near which those that the runs hardly constrain stay; None takes the
            defaults of the kind of machine.
    """
    start = before or (Efficiency() if any(run.on_gpu for run in runs) else CPU_RANKS)
    pairs = [(run.seconds[name], run.costs[name]) for run in runs for name in run.seconds]
    used = [term for term in TERMS if any(cost.get(term) for _, cost in pairs)]
    rows = [[cost.get(term, 0.0) / seconds for term in used] for seconds, cost in pairs]
    first = [start.of(term) for term in used]
    fastest = 1.0 if any(run.on_gpu for run in runs) else 1.0 / _MOST_FRACTION
    least = [fastest if term in FRACTIONS else 0.0 for term in used]
    # Iteratively reweighted least squares: weighted squares stand in for squared logarithms.
    fitted = first
    for _ in range(_REWEIGHTED):
        pulls = [_pull(value, now) for value, now in zip(first, fitted, strict=True)]
        fitted = solve(rows, [1.0] * len(rows), first, pulls, least)
    factors = dict(zip(used, fitted, strict=True))
    chosen = with_factors(start, {term: _factor(term, now) for term, now in factors.items()})
    return Fit(chosen, errors_of(runs, chosen), used, _undetermined(used, rows, pulls))


def _undetermined(
    terms: Sequence[Term], rows: Sequence[Sequence[float]], pulls: Sequence[float]
) -> list[Undetermined]:
    """Find the fitted factors that the runs hardly constrain, and the others that absorb their
    share.

    With rows A of relative errors and pulls P, factors have the covariance s^2 (A'A + P'P)^-1
    around what is fitted, and s^2 (P'P)^-1 before (ridge regression with a normal prior; Hoerl and
    Kennard, 1970).

    Args:
        terms: of the factors.
        rows: of the equations, a coefficient for each factor.
        pulls: how strongly each factor stays; above 0.
    """
    # In units in which each factor has variance 1 without runs.
    scaled = [[a / pull for a, pull in zip(row, pulls, strict=True)] for row in rows]
    columns = list(zip(*scaled, strict=True)) if scaled else [()] * len(terms)
    products = [[sum(map(mul, one, other)) for other in columns] for one in columns]
    for i, row in enumerate(products):
        row[i] += 1.0
    left = inverse(products)
    return [
        # Alone it would have 1 / products[i][i] left.
        Undetermined(term, _instead(terms, left, i) if products[i][i] * _HELD > 1.0 else ())
        for i, term in enumerate(terms)
        if left[i][i] > _HELD
    ]


def _instead(terms: Sequence[Term], left: Sequence[Sequence[float]], i: int) -> list[Term]:
    alike = {
        term: left[i][k] / (left[i][i] * left[k][k]) ** 0.5
        for k, term in enumerate(terms)
        if k != i
    }
    return sorted((t for t in alike if alike[t] < _CONFUSED), key=alike.__getitem__)


def _pull(before: float, now: float) -> float:
    """Weight for which weight * (now - before) is _PULL ln(now / before), so that factors that are
    wrong by orders of magnitude can move."""
    if not before:
        return _PULL
    ratio = max(now / before, _LEAST_RATIO)
    return _PULL * (log(ratio) / (ratio - 1) if abs(ratio - 1) > _LEAST_RATIO else 1.0) / before


def _factor(term: str, seconds: float) -> float:
    return 1.0 / seconds if term in FRACTIONS else seconds


def errors_of(runs: Sequence[Measured], efficiency: Efficiency) -> list[Error]:
    """Prediction errors of every operator of the runs."""
    return [
        Error(run.name, name, seconds, efficiency.seconds(run.costs[name]))
        for run in runs
        for name, seconds in run.seconds.items()
    ]


def _mean(rows: Sequence[Mapping[str, Any]], name: str) -> float | None:
    values = _values(rows, name)
    return fmean(values) if values else None


def _values(rows: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [float(row[name]) for row in rows if row.get(name) is not None]
