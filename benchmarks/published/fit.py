"""Fit the time model's default factors to the published rows that are not held out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from math import exp, log, sqrt
from statistics import fmean

from benchmarks.published.rows import Row
from verl_hpc.planner.timing.cost import FRACTIONS, Efficiency, Term, with_factors

FITTED: Mapping[Term, tuple[float, tuple[Term, ...]]] = {
    "training": (0.4, ("training", "inference")),
    "layers": (2e-4, ("layers",)),
    "experts": (0.2, ("experts",)),
    "expert_layers": (1e-3, ("expert_layers",)),
    "decode_steps": (4e-3, ("decode_steps",)),
}
"""Factors that are fitted: where the search starts, and the terms that have the same factor. The
others are those of `Efficiency`, which steps alone cannot tell apart."""
_PULL = 0.1
"""Weight of a factor's start: a change by a factor of e costs what a step that is 10 % off does."""
_FIRST, _LAST = 0.3, 0.003
"""First and last change of a factor's logarithm that is tried."""
_DIGITS = 3


def fit(rows: Sequence[Row], before: Efficiency) -> Efficiency:
    """Factors with the least squares of `residuals`, by pattern search on their logarithms.

    A predicted step is a maximum of sums, which has kinks, so that no derivative is used (Hooke and
    Jeeves, 1961).

    Args:
        rows: to fit to.
        before: factors that are not fitted.
    """
    changes = dict.fromkeys(FITTED, 0.0)
    best, step = _loss(rows, before, changes), _FIRST
    while step > _LAST:
        better = False
        for name in FITTED:
            for change in (step, -step):
                tried = {**changes, name: changes[name] + change}
                loss = _loss(rows, before, tried)
                if loss < best:
                    changes, best, better = tried, loss, True
                    break
        step *= 1.0 if better else 0.5
    return _changed(before, changes)


def residuals(rows: Sequence[Row], efficiency: Efficiency) -> Iterator[float]:
    """Logarithm of plan / theirs of each step, and of operators where they are published."""
    for row in rows:
        step = row.predict(efficiency)
        yield log(step.seconds / row.seconds)
        for name, theirs in row.operators.items():
            yield log(step.of(name) / theirs)


def spread(rows: Sequence[Row], efficiency: Efficiency) -> float:
    """Standard deviation from 0 of the logarithm of plan / theirs."""
    return sqrt(fmean(log(row.predict(efficiency).seconds / row.seconds) ** 2 for row in rows))


def _loss(rows: Sequence[Row], before: Efficiency, changes: Mapping[Term, float]) -> float:
    efficiency = _changed(before, changes)
    pulls = sum((_PULL * change) ** 2 for change in changes.values())
    return sum(off**2 for off in residuals(rows, efficiency)) + pulls


def _changed(before: Efficiency, changes: Mapping[Term, float]) -> Efficiency:
    """Factors whose seconds are exp(change) times those of the start; no fraction is above 1."""
    factors: dict[Term, float] = {}
    for name, change in changes.items():
        start, terms = FITTED[name]
        value = min(start * exp(-change), 1.0) if name in FRACTIONS else start * exp(change)
        factors |= dict.fromkeys(terms, float(f"{value:.{_DIGITS}g}"))
    return with_factors(before, factors)
