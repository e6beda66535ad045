"""One line for each run: state, step, reward or loss, pace, time to go; the last at work first.

Looks for run directories in DIR, up to three levels down. Slurm is asked once for all of them, at
most every 30 s, and only about runs whose files leave a question.

examples:
  python -m verl_hpc list
  python -m verl_hpc list /scratch/project/runs
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Mapping
from pathlib import Path

from verl_hpc.cli.status_progress import Progress, read_progress
from verl_hpc.cli.status_text import ago
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.names import PAIR_LOSS, PREFERENCE_LOSS, SCORE, SFT_LOSS
from verl_hpc.metrics.text import duration, number
from verl_hpc.runs.find import RUNS, last_activity, named_runs, no_runs_yet, recipe, total_steps
from verl_hpc.runs.queue import ask_slurm
from verl_hpc.runs.status import conclude, look

HEADER = ("run", "state", "recipe", "step", "reward", "a step", "to go", "job", "last sign of life")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", nargs="?", type=Path, metavar="DIR", help="where runs are (default: runs)"
    )


def run(arguments: argparse.Namespace) -> int:
    directory = directory_of_runs(arguments.directory)
    if directory is None:
        return 0
    rows = table(directory, named_runs(directory), time.time())
    if not rows:
        print(f"{directory}: no runs")
        return 0
    widths = [max(map(len, column)) for column in zip(HEADER, *rows, strict=True)]
    for row in (HEADER, *rows):
        line = "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True))
        print(line.rstrip())
    return 0


def directory_of_runs(given: Path | None) -> Path | None:
    """Return the directory that was given, or the default one; None, and say so, if that has not
    been made yet.

    Raises:
        ConfigError: there is no directory of the given name.
    """
    directory = given or RUNS
    if directory.is_dir():
        return directory
    if given is None:
        print(no_runs_yet())
        return None
    raise ConfigError(f"{directory}: no such directory; name the one that has the runs")


def table(directory: Path, runs: Mapping[str, Path], now: float) -> list[tuple[str, ...]]:
    """Return cells for each run in the columns of `HEADER`, the one last at work first.

    Args:
        directory: directory for which Slurm's answer is cached.
        runs: run directories by name.
        now: seconds since the epoch.
    """
    newest_first = sorted(runs, key=lambda name: last_activity(runs[name]), reverse=True)
    progresses = {name: read_progress(runs[name]) for name in newest_first}
    sights = {name: look(runs[name], now, p.longest_s) for name, p in progresses.items()}
    # One question to Slurm for the jobs of all runs.
    questions = dict.fromkeys(job for sight in sights.values() for job in sight.asks())
    answer = ask_slurm(directory, list(questions))
    rows: list[tuple[str, ...]] = []
    for name, progress in progresses.items():
        beat = sights[name].beat
        total = beat.total_steps if beat is not None else None
        total = total_steps(runs[name]) if total is None else total
        state = conclude(sights[name], answer)
        rows.append(
            (
                name,
                state.name,
                recipe(runs[name]) or "-",
                f"{progress.step}/{total or '?'}",
                _reward(progress),
                duration(progress.seconds),
                duration(None if state.is_over else progress.remaining_s(total)),
                (beat.job_id if beat is not None else None) or "-",
                ago(now - last_activity(runs[name])),
            )
        )
    return rows


def _reward(progress: Progress) -> str:
    """Return the last reward, or the last loss of a run without rewards."""
    labels = {SCORE: "", **dict.fromkeys((SFT_LOSS, PAIR_LOSS, PREFERENCE_LOSS), "loss ")}
    for name, label in labels.items():
        if name in progress.figures:
            return label + number(progress.figures[name].value)
    return "-"
