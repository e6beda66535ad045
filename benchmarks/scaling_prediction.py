"""The section of a measured scaling page on what the time model of `plan` makes of each run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from verl_hpc.cli.plan_runs import read_run
from verl_hpc.cli.report_scaling import compared
from verl_hpc.planner.timing.calibrate import workload_measured
from verl_hpc.planner.timing.efficiency_file import read_efficiency
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import StepTime, predict_step
from verl_hpc.runs.scaling.efficiency import Measured
from verl_hpc.runs.scaling.page import Window, markdown_table, shown, unit_of

_Pairs = Sequence[tuple[Measured, StepTime]]


def prediction(directories: Sequence[Path], skip: int, efficiency: str | None = None) -> str:
    """The section, in Markdown.

    Args:
        directories: of the runs, which `submit` or `scaling_series` has started.
        skip: first steps of each run that are left out.
        efficiency: file with the time model's factors; None has the defaults.
    """
    runs, window = compared(directories, skip)
    steps = [_predict(path, window, efficiency) for path in directories]
    factors = " ".join(dict.fromkeys(step.basis.sentence for step in steps))
    of = f" with factors of {efficiency}" if efficiency else ""
    note = (
        f"Predicted by the time model of `plan`{of}, for prompts and responses as long as those of "
        f"the compared steps were on average. {factors} Efficiency is of prompts a second and "
        "rank, against the smallest size."
    )
    pairs = sorted(zip(runs, steps, strict=True), key=lambda pair: pair[0].ranks)
    lines = ["## Prediction", "", *_table(pairs, unit_of(runs)), "", note, ""]
    return "\n".join([*lines, *_operators(pairs)])


def _predict(path: Path, window: Window, efficiency: str | None) -> StepTime:
    run = read_run(path)
    rows = [row for row in run.rows if window.first <= row["step"] <= window.last]
    work = workload_measured(run.config, rows)
    machine = Machine(run.hardware, read_efficiency(efficiency, run.hardware.kind))
    return predict_step(run.config, run.archs, run.layouts, machine, work=work)


def _table(pairs: _Pairs, unit: str) -> list[str]:
    header = ("run", unit, "s/step", "predicted", "off by", "efficiency", "predicted")
    rows = [
        (
            run.name,
            str(run.ranks),
            f"{run.step_s:.3g}",
            f"{mine.seconds:.3g}",
            f"{mine.seconds / run.step_s - 1:+.0%}",
            f"{_efficiency(pairs, run, run.step_s, False):.1%}",
            f"{_efficiency(pairs, run, mine.seconds, True):.1%}",
        )
        for run, mine in pairs
    ]
    return markdown_table(header, rows)


def _efficiency(pairs: _Pairs, run: Measured, seconds: float, of_model: bool) -> float:
    """Return the prompts per second and rank relative to the smallest run, for strong and weak
    scaling alike."""
    first, its = pairs[0]
    base = first.batch / (first.ranks * (its.seconds if of_model else first.step_s))
    return run.batch / (run.ranks * seconds) / base


def _operators(pairs: _Pairs) -> list[str]:
    names = list(dict.fromkeys(name for run, _ in pairs for name in run.operators))
    known = [name for name in names if any(name in mine.operators for _, mine in pairs)]
    header = ("operator, s/step: measured, predicted", *(run.name for run, _ in pairs))
    rows = [
        [name, *(f"{shown(run.operators, name)}, {shown(p.operators, name)}" for run, p in pairs)]
        for name in known
    ]
    return markdown_table(header, rows)
