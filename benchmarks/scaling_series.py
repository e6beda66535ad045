"""One configuration on several sizes, for real: jobs of a cluster, or ranks of mpiexec here.

Every run has a directory of its own; those that are finished are not repeated.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.figures import markdown_table
from benchmarks.launch import REPOSITORY, mpiexec, run
from verl_hpc.cli.plan_runs import PastRun, read_run
from verl_hpc.cli.report_scaling import Prediction, scaling_page
from verl_hpc.cluster.profile import PREFIX
from verl_hpc.config.load import load_config
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ClusterError
from verl_hpc.metrics.log import read_metrics
from verl_hpc.planner.timing.calibrate import CPU_SECONDS, Measured, calibrate, errors_of, measured
from verl_hpc.planner.timing.cost import Efficiency, defaults
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.runs.jobs import read_jobs
from verl_hpc.slurm.tools import my_jobs

APART = ("checkpoint.every=0", "evaluation.every=0", "evaluation.at_start=false")
"""What is no part of a step, and costs time."""
TIMEOUT_S = 3600.0


@dataclass(frozen=True)
class One:
    """One run of a series."""

    size: int
    """Nodes of a cluster, or ranks here."""
    words: tuple[str, ...]
    """Settings over the configuration's."""
    config: RunConfig

    @property
    def directory(self) -> Path:
        return self.config.run_directory

    @property
    def is_done(self) -> bool:
        """Whether all its steps are in its metrics.

        Raises:
            SystemExit: its directory has a run of other settings.
        """
        if not (self.directory / "metrics.jsonl").exists():
            return False
        if load_config(self.directory / "config.yaml") != self.config:
            raise SystemExit(
                f"{self.directory}: a run of other settings is there (config.yaml); move it away, "
                "or set directory=..."
            )
        rows = read_metrics(self.directory)
        return bool(rows) and rows[-1]["step"] == self.config.steps


def series(
    config: Path, words: Sequence[str], sizes: Sequence[int], weak: bool, unit: str
) -> list[One]:
    """The runs of all sizes.

    Args:
        config: the configuration.
        words: settings over its own, and with `site.` over the site profile's.
        sizes: ascending.
        weak: the batch of the smallest size grows with the others.
        unit: what the sizes count, for names.

    Raises:
        VerlHpcError: a setting is wrong.
    """
    ours = [word for word in words if not word.startswith(PREFIX)]
    base = load_config(config, [*ours, *APART])
    found = []
    for size in sizes:
        batch = base.batch.size * size // sizes[0] if weak else base.batch.size
        name = f"{base.name}_{'weak' if weak else 'strong'}_{unit}{size}"
        mine = [f"name={name}", f"batch.size={batch}", *APART]
        found.append(One(size, (*words, *mine), load_config(config, [*ours, *mine])))
    return found


def on_cluster(
    runs: Sequence[One], config: Path, cluster: str, limit: str, one_by_one: bool, poll_s: float
) -> None:
    """Submit all that is not done, and wait for it.

    Args:
        runs: of a series.
        config: the configuration.
        cluster: site profile.
        limit: time limit of a job, as Slurm writes it.
        one_by_one: the next is submitted when one has ended, for nodes that share a machine.
        poll_s: seconds from one question to Slurm to the next.

    Raises:
        SystemExit: a submission is refused, or a run ended before its last step.
    """
    left = [one for one in runs if not one.is_done]
    for group in [[one] for one in left] if one_by_one else [left]:
        for one in group:
            command = [sys.executable, "-m", "verl_hpc.submit", "--config", str(config)]
            command += ["--cluster", cluster, "--nodes", str(one.size), "--time", limit]
            done = subprocess.run([*command, *one.words], text=True, capture_output=True)
            if done.returncode:
                raise SystemExit(f"{one.directory}: {done.stderr.strip() or done.stdout.strip()}")
            print(done.stdout, end="", file=sys.stderr, flush=True)
        jobs = {one.directory: _jobs(one) for one in group}
        while any(_queued(jobs)):
            time.sleep(poll_s)
        _check(group)


def _jobs(one: One) -> set[str]:
    return {facts["job_id"] for facts in read_jobs(one.directory / "job")}


def _queued(jobs: Mapping[Path, set[str]]) -> set[str]:
    """Those that are in the queue; all where the controller does not answer."""
    mine = set().union(*jobs.values())
    try:
        return mine & set(my_jobs())
    except ClusterError as error:
        print(f"asked again later: {error}", file=sys.stderr)
        return mine


def _check(runs: Sequence[One]) -> None:
    for one in runs:
        if not one.is_done:
            raise SystemExit(
                f"{one.directory}: ended before step {one.config.steps}; "
                f"python -m verl_hpc logs {one.directory}"
            )


def on_ranks(runs: Sequence[One], config: Path) -> None:
    """Run all that is not done under mpiexec, one after the other.

    Raises:
        SystemExit: a run failed.
    """
    for one in runs:
        if one.is_done:
            continue
        one.directory.mkdir(parents=True, exist_ok=True)
        command = [*mpiexec(one.size), "-m", "verl_hpc", "train", "--config", str(config)]
        run([*command, *one.words], one.directory.with_suffix(".log"), TIMEOUT_S)
        # As `submit` leaves it: what the ranks ran on, which a prediction asks for.
        site = {"name": "here", "gpus_per_node": 0, "tasks_per_node": one.size}
        site |= {"cores_per_node": one.size, "memory": None, "container": {"kind": "bare"}}
        (one.directory / "job").mkdir(exist_ok=True)
        (one.directory / "job" / "site.yaml").write_text(write_yaml(site), encoding="utf-8")
    _check(runs)


def page(runs: Sequence[One], skip: int, fitted: Sequence[int]) -> str:
    """The page of `report scaling --predict`, and CPU seconds where they were measured.

    Args:
        runs: that are done.
        skip: first steps of each that are not counted.
        fitted: sizes whose runs the factors are fitted to; none leaves them at their defaults.

    Raises:
        VerlHpcError: the runs do not compare, or have too few steps.
        SystemExit: the factors cannot be fitted.
    """
    directories = [one.directory for one in runs]
    factors = None
    if fitted:
        factors = _fit([one.directory for one in runs if one.size in fitted], skip)
    prediction = Prediction(efficiency=factors)
    text = scaling_page(directories, skip, prediction).removeprefix("# Scaling\n\n")
    if factors is not None:
        known = ", ".join(str(size) for size in fitted)
        text += f"\nFactors fitted to the runs of size {known}; the other sizes are predicted.\n"
    past = [read_run(path) for path in directories]
    if fitted and not any(one.hardware.kind.is_gpu for one in past):
        rows = cpu_rows([_of_cpu(one, skip) for one in past], [r.size in fitted for r in runs])
        text += f"\n## CPU seconds of a rank in a step\n\n{cpu_table(rows)}\n"
    return text


def _fit(directories: Sequence[Path], skip: int) -> str:
    file = directories[0].parent / "efficiency.yaml"
    command = [sys.executable, "-m", "verl_hpc", "plan", "calibrate", *map(str, directories)]
    command += ["--skip", str(skip), "--out", str(file)]
    done = subprocess.run(command, text=True, capture_output=True, cwd=REPOSITORY)
    if done.returncode:
        raise SystemExit(f"plan calibrate: {done.stderr.strip()}")
    return str(file)


def _of_cpu(past: PastRun, skip: int) -> Measured:
    rows, machine = past.rows_after(skip), Machine(past.hardware, defaults(past.hardware.kind))
    words = (past.path.name, past.config, past.archs, past.layouts, rows, machine)
    return measured(*words, CPU_SECONDS)


def cpu_rows(
    runs: Sequence[Measured], fitted: Sequence[bool]
) -> list[tuple[str, float, float, bool]]:
    """Of each run: its name, CPU seconds of its operators, measured and predicted, and whether the
    factors were fitted to it."""
    known = [run for run, is_fitted in zip(runs, fitted, strict=True) if is_fitted]
    efficiency: Efficiency = calibrate(known).efficiency
    found = []
    for run_, is_fitted in zip(runs, fitted, strict=True):
        errors = errors_of([run_], efficiency)
        both = sum(e.measured for e in errors), sum(e.predicted for e in errors)
        found.append((run_.name, *both, is_fitted))
    return found


def cpu_table(rows: Sequence[tuple[str, float, float, bool]]) -> str:
    """In Markdown."""
    header = ("run", "measured", "predicted", "off by", "")
    lines = [
        (
            name,
            f"{mine:.3g}",
            f"{predicted:.3g}",
            f"{predicted / mine - 1:+.0%}",
            "fitted to it" if is_fitted else "predicted",
        )
        for name, mine, predicted, is_fitted in rows
    ]
    return markdown_table(header, lines)
