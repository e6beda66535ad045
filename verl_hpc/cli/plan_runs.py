"""Read past runs for the planner's time model."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from verl_hpc.cli.plan_inputs import architectures
from verl_hpc.cluster.hardware import hardware_of
from verl_hpc.cluster.profile import Profile, load_profile
from verl_hpc.config.load import load_config
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.metrics.log import Row, read_metrics
from verl_hpc.metrics.report import read_facts
from verl_hpc.metrics.series import timed
from verl_hpc.placement.layouts import RunLayouts, run_layouts
from verl_hpc.runs.jobs import read_jobs

SKIP = 3
"""First steps that are left out by default."""


@dataclass(frozen=True)
class PastRun:
    """A past run, read from its directory."""

    path: Path
    config: RunConfig
    archs: Mapping[str, Architecture]
    """Architectures by role, in the order of roles."""
    layouts: RunLayouts
    hardware: Hardware
    rows: Sequence[Row]
    """Rows of steps whose seconds are known."""

    def rows_after(self, skip: int) -> list[Row]:
        """Return the rows without the first steps.

        Raises:
            ConfigError: none are left.
        """
        rows = [row for row in self.rows if row["step"] > skip]
        if not rows:
            raise ConfigError(
                f"{self.path}: no step after the first {skip}, which are not counted; let it do a "
                "few more, or give --skip"
            )
        return rows


def read_run(path: Path, cluster: str | None = None, model_config: Sequence[str] = ()) -> PastRun:
    """Read a run directory.

    Args:
        path: run directory.
        cluster: site profile; None takes the one that the run was submitted with.
        model_config: words for `plan_inputs.architectures`.

    Raises:
        VerlHpcError: a file is missing or wrong.
    """
    config = load_config(path / "config.yaml")
    profile = _profile(path, cluster)
    ranks, nodes = ranks_of(path)
    hardware = hardware_of(profile.site)
    if ranks > nodes * hardware.ranks_per_node or ranks % nodes:
        raise ConfigError(
            f"{path}: it had {ranks} ranks on {nodes} node{'s' * (nodes > 1)}, and site "
            f"{profile.site.name} has {hardware.ranks_per_node} on each; give the profile it ran "
            "with as --cluster"
        )
    # A run on part of a node, as under mpiexec, has what its ranks have.
    hardware = replace(hardware, ranks_per_node=ranks // nodes)
    archs = architectures(config, profile, model_config)
    first = archs[next(iter(archs))]
    layouts = run_layouts(config, first, ranks, archs=archs, ranks_per_node=hardware.ranks_per_node)
    return PastRun(path, config, archs, layouts, hardware, timed(read_metrics(path)))


def first_steps(skip: int | None) -> int:
    """Return how many first steps --skip leaves out; kernels are compiled and memory is allocated
    in them.

    Raises:
        ConfigError: the number is negative.
    """
    if skip is not None and skip < 0:
        raise ConfigError(f"--skip {skip}: a number of steps from 0 up")
    return SKIP if skip is None else skip


def _profile(path: Path, cluster: str | None) -> Profile:
    if cluster is not None:
        return load_profile(cluster)
    submitted = path / "job" / "site.yaml"
    if not submitted.is_file():
        raise ConfigError(
            f"{path}: no job/site.yaml, since `submit` did not start it; give the profile of the "
            "machine that it ran on as --cluster"
        )
    return load_profile(submitted)


def ranks_of(path: Path) -> tuple[int, int]:
    """Return the numbers of ranks and nodes of a run.

    Raises:
        ConfigError: no file of the run has them.
    """
    known = known_ranks(path)
    if known is None:
        raise ConfigError(
            f"{path}: how many ranks it has is written to facts.json when it ends, or to "
            "job/submitted.jsonl when it is submitted; it has neither: let it end first"
        )
    return known


def known_ranks(path: Path) -> tuple[int, int] | None:
    """Return the numbers of ranks and nodes of a run; None if no file of it has them."""
    ranks = str(read_facts(path).get("ranks", ""))
    if match := re.match(r"(\d+) on (\d+) node", ranks):
        return int(match.group(1)), int(match.group(2))
    jobs = read_jobs(path / "job")
    return (int(jobs[-1]["ranks"]), int(jobs[-1]["nodes"])) if jobs else None
