"""`report scaling`: runs of one configuration at several sizes, on one page."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verl_hpc.cli.output import write_file
from verl_hpc.cli.plan_runs import first_steps, ranks_of, read_run
from verl_hpc.config.tree import flat, read_tree
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.log import Row, read_metrics
from verl_hpc.metrics.names import STEP_SECONDS, TIMING, TOKENS
from verl_hpc.metrics.series import mean_seconds, timed
from verl_hpc.planner.timing.calibrate import workload_measured
from verl_hpc.planner.timing.efficiency_file import read_efficiency
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.step import StepTime, predict_step
from verl_hpc.runs.find import find_run, short_names
from verl_hpc.runs.scaling.efficiency import Measured, check_comparable, check_tables
from verl_hpc.runs.scaling.page import Predicted, Window, prediction_block, render_page, unit_of

APART = (f"{TIMING}testing", f"{TIMING}save_checkpoint")
"""Timers of periodic work, which is no part of a step's time."""
FEWEST_STEPS = 3
FEWEST_SIZES = 3
_GPU = "perf/max_memory_allocated_gb"


@dataclass(frozen=True)
class Prediction:
    """How to predict the runs."""

    cluster: str | None = None
    """Site profile; None takes the one that each run was submitted with."""
    model_config: Sequence[str] = ()
    efficiency: str | None = None
    """File with the time model's factors."""


def run_scaling(words: Sequence[str], arguments: argparse.Namespace) -> int:
    """Write the page about these runs, or print it.

    Raises:
        VerlHpcError: for the reasons of `scaling_page`, or options that do not go together.
    """
    skip = first_steps(arguments.skip)
    page = scaling_page([find_run(word) for word in words], skip, _prediction(arguments))
    if arguments.out is None:
        print(page, end="")
        return 0
    write_file("--out", arguments.out, page)
    print(arguments.out)
    return 0


def _prediction(arguments: argparse.Namespace) -> Prediction | None:
    cluster, efficiency = arguments.cluster, arguments.efficiency
    model_config = arguments.model_config or ()
    if arguments.predict:
        return Prediction(cluster, model_config, efficiency)
    if cluster or efficiency or model_config:
        raise ConfigError("--cluster, --efficiency and --model-config belong to --predict: add it")
    return None


def scaling_page(
    directories: Sequence[Path], skip: int, prediction: Prediction | None = None
) -> str:
    """Return the page about these runs, as Markdown.

    Args:
        directories: run directories.
        skip: first steps of each run that are left out.
        prediction: settings of a prediction to compare with; None has none.

    Raises:
        ConfigError: there are too few runs or steps, or they do not compare.
        DataError: a run has no metrics.
    """
    if len(directories) < 2:
        raise ConfigError("report scaling needs runs of at least two sizes")
    if repeated := {str(d) for d in directories if directories.count(d) > 1}:
        raise ConfigError(f"report scaling: {', '.join(repeated)} is given twice")
    settings = [dict(flat(read_tree(path / "config.yaml"))) for path in directories]
    rows = [timed(read_metrics(path)) for path in directories]
    window = _window(directories, rows, settings, skip)
    names = short_names(directories)
    runs = [
        _measure(path, name, own, chosen, window)
        for path, name, own, chosen in zip(directories, names, rows, settings, strict=True)
    ]
    check_comparable(runs)
    check_tables(runs)
    more = [] if prediction is None else [_predicted(directories, runs, window, prediction)]
    return render_page(runs, window, list(_missing(directories, runs)), more)


def _predicted(
    directories: Sequence[Path], runs: Sequence[Measured], window: Window, how: Prediction
) -> list[str]:
    """Return the page's section on the prediction."""
    steps = [_predict(path, window, how) for path in directories]
    predictions = [Predicted(step.seconds, step.operators) for step in steps]
    factors = " ".join(dict.fromkeys(step.basis.sentence for step in steps))
    of = f" with factors of {how.efficiency}" if how.efficiency else ""
    note = (
        f"Predicted by the time model of `plan`{of}, for prompts and responses as long as those of "
        f"the compared steps were on average. {factors} Efficiency is of prompts a second and "
        "rank, against the smallest size."
    )
    return prediction_block(runs, predictions, unit_of(runs), note)


def _predict(path: Path, window: Window, how: Prediction) -> StepTime:
    run = read_run(path, how.cluster, how.model_config)
    rows = [row for row in run.rows if window.first <= row["step"] <= window.last]
    work = workload_measured(run.config, rows)
    machine = Machine(run.hardware, read_efficiency(how.efficiency, run.hardware.kind))
    return predict_step(run.config, run.archs, run.layouts, machine, work=work)


def _measure(
    path: Path, name: str, rows: Sequence[Row], settings: Mapping[str, Any], window: Window
) -> Measured:
    ranks, nodes = ranks_of(path)
    compared = [_without_apart(row) for row in rows if window.first <= row["step"] <= window.last]
    seconds = [row[STEP_SECONDS] for row in compared]
    tokens = sum(row.get(TOKENS) or 0.0 for row in compared)
    return Measured(
        name=name,
        nodes=nodes,
        ranks=ranks,
        batch=settings["batch.size"],
        on_gpus=any(_GPU in row for row in rows),
        seconds=tuple(seconds),
        tokens_per_s=tokens / sum(seconds) if tokens else None,
        operators=mean_seconds(compared),
        rank_hours=ranks * sum(row[STEP_SECONDS] for row in rows) / 3600,
        settings=settings,
    )


def _without_apart(row: Row) -> Row:
    spent = sum(row.get(name) or 0.0 for name in APART)
    kept = {name: value for name, value in row.items() if name not in APART}
    return {**kept, STEP_SECONDS: row[STEP_SECONDS] - spent}


def _window(
    directories: Sequence[Path],
    rows: Sequence[Sequence[Row]],
    settings: Sequence[Mapping[str, Any]],
    skip: int,
) -> Window:
    """Return the steps that all runs have: responses grow during training, so other steps are
    different work."""
    warmup = max(int(chosen.get("critic.warmup_steps") or 0) for chosen in settings)
    lasts = [max((row["step"] for row in own), default=0) for own in rows]
    window = Window(max(skip, warmup) + 1, min(lasts))
    if window.num_steps < FEWEST_STEPS:
        shortest = directories[lasts.index(window.last)]
        raise ConfigError(
            f"{shortest}: {window.last} steps done; at least {FEWEST_STEPS} after the first "
            f"{window.first - 1}, which are not counted, are needed"
        )
    return window


def _missing(directories: Sequence[Path], runs: Sequence[Measured]) -> Iterator[str]:
    sizes = len({run.ranks for run in runs})
    if sizes < FEWEST_SIZES:
        yield f"Centres ask for at least {FEWEST_SIZES} sizes; these runs have {sizes}."
    if not runs[0].on_gpus:
        yield "These runs were on CPU ranks; a machine's own scaling needs runs on its GPUs."
    yield "GPU utilisation is not recorded by the runs; take it from the centre's job report."
    for path in directories:
        if not (path / "job" / "job.sbatch").exists():
            yield f"{path}: no job/job.sbatch to attach; it was not started by `submit`."
