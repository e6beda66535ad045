"""The dry run: everything a job is made of, each value with its origin."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from verl_hpc.cluster.job import Job
from verl_hpc.cluster.mounts import Mount
from verl_hpc.cluster.script import render_script, render_step
from verl_hpc.cluster.setting import Setting


def explain(job: Job, made_by: Sequence[str]) -> str:
    """Script, srun line, mounts and environment; the same request gives the same bytes."""
    mounts = [Setting(mount.source, f"-> {_target(mount)}", mount.origin) for mount in job.mounts]
    passed = [Setting(s.name, "(the submitter's)", s.origin) for s in job.passed]
    parts = [
        ("script", render_script(job, made_by).rstrip("\n")),
        ("srun", render_step(job)),
        ("options of sbatch", _table(job.directives)),
        ("options of srun", _table(job.srun)),
        ("variables of the script", _table(job.variables)),
        ("mounts", _table(mounts) or _without_mounts(job)),
        ("environment of the ranks", _table([*job.environment, *passed])),
        ("run configuration, where it is not the default", _table(job.request.given())),
        ("after the job", _after(job)),
    ]
    return "\n\n".join(f"== {title}\n{text}" for title, text in parts) + "\n"


def _without_mounts(job: Job) -> str:
    if job.site.container.image is None:
        return "none: ranks see the node's own file systems"
    return "those of the image's own file"


def _table(settings: Iterable[Setting]) -> str:
    rows = [(s.name, "" if s.value is None else s.value, s.origin) for s in settings]
    widths = [min(max((len(row[i]) for row in rows), default=0), 44) for i in (0, 1)]
    return "\n".join(
        f"{name:<{widths[0]}}  {value:<{widths[1]}}  [{origin}]" for name, value, origin in rows
    )


def _target(mount: Mount) -> str:
    return f"{mount.target}:ro" if mount.read_only else mount.target


def _after(job: Job) -> str:
    if job.restarts is None:
        return "nothing: it is not started again"
    most = job.restarts.most
    if job.restarts.by == "chain":
        return f"{most + 1} jobs are submitted; each starts when the one before has ended"
    return f"a job that has saved and is not done puts itself back into the queue, {most} times"
