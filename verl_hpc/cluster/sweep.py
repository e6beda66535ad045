"""A sweep: one array job of Slurm, and a separate run for each combination of values.

runs/NAME/sweep.sbatch   the array's script, which calls the scripts of its runs
runs/NAME/sweep.json     what each run was given
runs/NAME/0, 1, ...      run directories like any other
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_hpc.cluster.job import Job, plan_job
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.script import directive_lines, made_by_lines, shebang
from verl_hpc.cluster.setting import COMMAND_LINE, Setting
from verl_hpc.cluster.shell import expandable
from verl_hpc.config.load import load_config
from verl_hpc.errors import ConfigError
from verl_hpc.sources.local import with_local_models

_MOST_RUNS = 1000
"""What Slurm allows by default (MaxArraySize)."""


@dataclass(frozen=True)
class SweepRun:
    """One run of a sweep."""

    words: tuple[str, ...]
    """Its combination, such as ("optimizer.lr=1e-6", "seed=2")."""
    job: Job


@dataclass(frozen=True)
class Sweep:
    """Runs that are submitted as one array."""

    directory: Path
    runs: tuple[SweepRun, ...]
    at_once: int | None
    """Runs that may be under way at a time; None leaves that to Slurm."""


def combinations(sweeps: Sequence[str]) -> list[tuple[str, ...]]:
    """Every combination, the last field varying fastest.

    Args:
        sweeps: words such as "optimizer.lr=1e-6,3e-6".

    Raises:
        ConfigError: a word that is not FIELD=VALUES, a field or a value given twice, or more
            runs than an array can have.
    """
    choices: dict[str, list[str]] = {}
    for word in sweeps:
        field, separator, text = word.partition("=")
        values = [value.strip() for value in text.split(",")]
        if not field or not separator or "" in values:
            raise ConfigError(f"--sweep {word}: expected field=value,value,...")
        if field in choices or len(set(values)) < len(values):
            raise ConfigError(f"--sweep {word}: each field once, each of its values once")
        if field in ("name", "directory") or field.startswith("site."):
            raise ConfigError(f"--sweep {word}: {field} is the same for all runs of a sweep")
        choices[field] = [f"{field}={value}" for value in values]
    combinations = list(itertools.product(*choices.values()))
    if len(combinations) > _MOST_RUNS:
        raise ConfigError(
            f"--sweep: {len(combinations)} combinations; an array has at most {_MOST_RUNS}"
        )
    return combinations


def plan_sweep(base: Request, sweeps: Sequence[str], at_once: int | None) -> Sweep:
    """Decide what every run is; `base` is the run without the swept fields.

    Raises:
        ConfigError: a combination that is not a valid run, or options that do not go together.
    """
    if base.profile.site.restarts.by == "chain":
        raise ConfigError("--sweep with --resume-by chain: a sweep restarts by requeue")
    if base.standalone:
        raise ConfigError("--sweep with --script-only: a sweep's script calls those of its runs")
    if at_once is not None and at_once < 1:
        raise ConfigError(f"--at-once {at_once}: at least 1")
    place = base.config.run_directory
    runs: list[SweepRun] = []
    for index, words in enumerate(combinations(sweeps)):
        overrides = (*base.overrides, *words, f"directory={place}", f"name='{index}'")
        config = with_local_models(load_config(base.config_path, overrides))
        request = replace(base, config=config, overrides=overrides, in_array=True)
        runs.append(SweepRun(words, plan_job(request)))
    return Sweep(base.run_directory, tuple(runs), at_once)


def array_directives(sweep: Sweep) -> list[Setting]:
    """Options of sbatch for the array; those of each run, but for its name and its log."""
    limit = "" if sweep.at_once is None else f"%{sweep.at_once}"
    array = Setting("array", f"0-{len(sweep.runs) - 1}{limit}", COMMAND_LINE)
    kept = [s for s in sweep.runs[0].job.directives if s.name not in ("job-name", "output")]
    output = f"{sweep.directory}/%a/job/slurm-%A_%a.log"
    name = Setting("job-name", sweep.directory.name, "")
    return [name, array, *kept, Setting("output", output, "")]


def render_array(sweep: Sweep, made_by: Sequence[str]) -> str:
    """The array's script: Slurm's directives, and a call of a run's own script."""
    first = sweep.runs[0].job
    what = f"{len(sweep.runs)} runs, each {first.title.partition(': ')[2]}"
    lines = [shebang(first), f"# {sweep.directory.name}: {what}"]
    lines += [*made_by_lines(made_by), *directive_lines(array_directives(sweep)), ""]
    bash = "bash -l" if first.site.login_shell else "bash"
    lines += [f"SWEEP={expandable(str(sweep.directory))}"]
    lines += [f'exec {bash} "$SWEEP/$SLURM_ARRAY_TASK_ID/job/job.sbatch"']
    return "\n".join(lines) + "\n"


def table(sweep: Sweep) -> str:
    """A line a run: its number, and what it was given."""
    return "\n".join(f"{index:>4}  {' '.join(run.words)}" for index, run in enumerate(sweep.runs))
