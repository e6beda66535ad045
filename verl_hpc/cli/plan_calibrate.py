"""`plan calibrate RUN...`: fit the time model's factors to past runs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from math import inf, log, sqrt
from pathlib import Path
from statistics import fmean

from verl_hpc.cli.output import write_file
from verl_hpc.cli.plan_runs import PastRun, first_steps, read_run
from verl_hpc.errors import ConfigError
from verl_hpc.planner.timing.calibrate import (
    CPU_SECONDS,
    SECONDS,
    Error,
    Fit,
    Measured,
    calibrate,
    errors_of,
    measured,
)
from verl_hpc.planner.timing.cost import MEANINGS, TERMS, TOLD_BY, Basis, Efficiency
from verl_hpc.planner.timing.efficiency_file import read_efficiency, write_efficiency
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.runs.find import find_run

_ROUNDS = 6
FAR = 0.25
"""Relative error from which on a prediction is reported."""


def run_calibrate(arguments: argparse.Namespace) -> int:
    """Raises: VerlHpcError: no runs, or a run without usable steps."""
    words = arguments.words[1:]
    if not words:
        raise ConfigError("plan calibrate: name the runs, such as runs/n1 runs/n2")
    skip = first_steps(arguments.skip)
    by = CPU_SECONDS if arguments.by == "cpu" else SECONDS
    paths = [find_run(word) for word in words]
    runs = [read_run(path, arguments.cluster, arguments.model_config or ()) for path in paths]
    before = read_efficiency(arguments.efficiency, runs[0].hardware.kind)
    fit = _fitted(runs, skip, by, before)
    left_out = _left_out(runs, skip, by, before)
    fit = replace(fit, efficiency=replace(fit.efficiency, basis=_basis(fit, left_out, len(runs))))
    print("\n".join(_lines(runs, fit, left_out, before, by)))
    if arguments.out is not None:
        text = write_efficiency(fit.efficiency, _comment(paths, fit, by))
        write_file("--out", arguments.out, text)
        print(f"\nwrote {arguments.out}: give it as --efficiency")
    return 0


def _fitted(runs: Sequence[PastRun], skip: int, by: str, before: Efficiency) -> Fit:
    """Fit the factors that predict the runs best.

    The factors decide which side of a roofline limits a product, and so the terms of a cost. Costs
    are therefore recomputed with the fitted factors, for a few rounds, and the best fit is kept.
    """
    costs = _measured(runs, skip, by, before)
    best, least = calibrate(costs, before), inf
    current = best
    for _ in range(_ROUNDS):
        costs = _measured(runs, skip, by, current.efficiency)
        errors = errors_of(costs, current.efficiency)
        off = sum(error.relative**2 for error in errors)
        if off < least:
            best, least = replace(current, errors=errors), off
        current = calibrate(costs, before)
    return best


def _left_out(
    runs: Sequence[PastRun], skip: int, by: str, before: Efficiency
) -> Mapping[tuple[str, str], Error]:
    """Predict each run by factors of the others, by run and operator; empty with fewer than three
    runs."""
    errors = []
    for run in runs if len(runs) > 2 else ():
        others = [other for other in runs if other is not run]
        efficiency = _fitted(others, skip, by, before).efficiency
        errors += errors_of(_measured([run], skip, by, efficiency), efficiency)
    return {(error.run, error.operator): error for error in errors}


def _measured(
    runs: Sequence[PastRun], skip: int, by: str, efficiency: Efficiency
) -> list[Measured]:
    return [
        measured(
            str(run.path),
            run.config,
            run.archs,
            run.layouts,
            run.rows_after(skip),
            Machine(run.hardware, efficiency),
            by,
        )
        for run in runs
    ]


def _basis(fit: Fit, left_out: Mapping[tuple[str, str], Error], num_runs: int) -> Basis:
    """What the fitted factors rest on. The spread is of operators, by the others' factors where
    there are enough runs; a step, their sum, is nearer."""
    errors = list(left_out.values()) or fit.errors
    squares = [log(error.predicted / error.measured) ** 2 for error in errors]
    runs = f"{num_runs} run{'s' * (num_runs > 1)}"
    return Basis(f"that `plan calibrate` fitted to {runs}", sqrt(fmean(squares)))


def _lines(
    runs: Sequence[PastRun],
    fit: Fit,
    left_out: Mapping[tuple[str, str], Error],
    before: Efficiency,
    by: str,
) -> Iterator[str]:
    what = "seconds of CPUs" if by == CPU_SECONDS else "seconds of the clock"
    yield f"fitted to {what} of {len(runs)} run{'s' * (len(runs) > 1)}; what each factor counts:"
    for name in (term for term in TERMS if term in fit.fitted):
        was, now = getattr(before, name), getattr(fit.efficiency, name)
        yield f"  {name:<17} {was:>10.4g} -> {now:<10.4g} {MEANINGS[name]}"
    yield from _undetermined(fit)
    yield ""
    yield from _errors(fit.errors, left_out)
    if len(runs) == 1:
        yield "one run tells little of other layouts: add one with another layout"


def _undetermined(fit: Fit) -> Iterator[str]:
    if fit.undetermined:
        yield ""
        yield "these runs tell little of some factors, which stay near what they were:"
    for one in fit.undetermined:
        why = (
            f"not kept apart from {', '.join(one.instead)}"
            if one.instead
            else "a small part of all"
        )
        yield f"  {one.term:<17} {why}; add a run with {TOLD_BY[one.term]}"


def _errors(errors: Sequence[Error], left_out: Mapping[tuple[str, str], Error]) -> Iterator[str]:
    """Yield a table of errors; with three runs or more also those by the others' factors."""
    width = max(len(error.operator) for error in errors)
    more = f" {'by others':>9}" if left_out else ""
    yield f"  {'operator':<{width}} {'measured':>10} {'fitted':>10} {'off by':>8}{more}  run"
    for error in errors:
        other = left_out.get((error.run, error.operator))
        more = f" {other.relative:>+9.0%}" if other else " " * (10 * bool(left_out))
        yield (
            f"  {error.operator:<{width}} {error.measured:>10.4g} {error.predicted:>10.4g} "
            f"{error.relative:>+8.0%}{more}  {error.run}"
        )
    off = sorted({e.operator for e in left_out.values() if abs(e.relative) > FAR})
    if off:
        yield f"runs left out are predicted more than {FAR:.0%} off in: {', '.join(off)}"


def _comment(paths: Sequence[Path], fit: Fit, by: str) -> list[str]:
    worst: Error = max(fit.errors, key=lambda error: abs(error.relative))
    return [
        f"Fitted by `plan calibrate` to {by}NAME of {', '.join(map(str, paths))}.",
        f"Farthest off: {worst.operator} of {worst.run}, by {worst.relative:+.0%}.",
        f"Fitted: {', '.join(fit.fitted)}; the others are as they were.",
    ]
