"""job/submitted.jsonl: the jobs that were submitted for a run, one a line."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import read_regular
from verl_hpc.errors import ConfigError

JOBS = "submitted.jsonl"


def read_jobs(job: Path) -> list[dict[str, Any]]:
    """Return the jobs submitted for a run so far, oldest first; `job` is its directory job/.

    Raises:
        ConfigError: the list of them cannot be read, or ends in the middle of a line.
    """
    path = job / JOBS
    try:
        jobs = [json.loads(line) for line in read_regular(path).splitlines()]
        if not all(isinstance(facts, dict) and _is_text(facts.get("job_id")) for facts in jobs):
            raise ValueError("a line names no job")
        if not all(_is_text(facts.get("cluster", "")) for facts in jobs):
            raise ValueError("a line names no cluster")
    except FileNotFoundError:
        return []
    except (OSError, ValueError) as error:
        raise ConfigError(
            f"{path}: cannot be read as a list of jobs ({error}); move it away and try again"
        ) from None
    return jobs


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def cluster_of(job: Path, job_id: str | None = None) -> str | None:
    """Return the cluster that a job of a run was submitted to; None for the login node's own.

    Args:
        job: the run's directory job/.
        job_id: the job's id; for a job that is not recorded, the last job's cluster is returned.
    """
    try:
        jobs = read_jobs(job)
    except ConfigError:  # in the middle of a line
        return None
    asked = [facts for facts in jobs if facts["job_id"] == job_id] or jobs
    return asked[-1].get("cluster") if asked else None


def by_cluster(job: Path, job_ids: Iterable[str]) -> dict[str | None, list[str]]:
    """Return jobs of a run by the cluster that each was submitted to (`cluster_of`)."""
    jobs: dict[str | None, list[str]] = {}
    for job_id in job_ids:
        jobs.setdefault(cluster_of(job, job_id), []).append(job_id)
    return jobs


def record_job(job: Path, facts: Mapping[str, Any]) -> None:
    """Append one submission."""
    with (job / JOBS).open("a", encoding="utf-8") as file:
        file.write(json.dumps(facts) + "\n")
