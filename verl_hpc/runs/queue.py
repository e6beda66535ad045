"""Ask Slurm about a run's jobs, at most every 30 s however many people watch."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from verl_hpc.errors import ClusterError
from verl_hpc.runs.jobs import by_cluster
from verl_hpc.runs.records import read_record, write_record
from verl_hpc.slurm.tools import Runner, on_cluster, past_states

EVERY_S = 30.0
"""Least seconds between questions: administrators block users who ask more often."""
CACHE = "slurm.json"

WAITING = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT"})
ACTIVE = frozenset(
    {"RUNNING", "CONFIGURING", "COMPLETING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT"}
)


@dataclass(frozen=True)
class QueuedJob:
    """One job, as squeue or sacct shows it."""

    state: str
    reason: str = ""
    start: str = ""
    """Actual or expected start, in Slurm's format of local time; empty if unknown."""


@dataclass(frozen=True)
class Answer:
    """Slurm's answer: jobs by id, without those that it does not know."""

    jobs: Mapping[str, QueuedJob] = field(default_factory=dict)
    problem: str = ""
    """Why there is no answer, or only a partial one."""
    time: float = 0.0


def ask_slurm(
    directory: Path, job_ids: Sequence[str], clock: Callable[[], float] = time.time
) -> Answer:
    """Ask about jobs, unless an answer for this directory is less than 30 s old.

    Args:
        directory: run directory; its job/ keeps the answer for others, if it can be written.
        job_ids: jobs to ask about; none asks nothing.
    """
    if not job_ids:
        return Answer()
    if shutil.which("squeue") is None:
        return Answer(problem="squeue is not on PATH here")
    now = clock()
    files = _cache_files(directory)
    for file in files:
        kept = read_record(file, Answer)
        # A clock that is ahead must not silence us for long.
        if kept is not None and abs(now - kept.time) < EVERY_S:
            return kept
    jobs_of = by_cluster(directory / "job", job_ids)
    answers = [_ask(ids, on_cluster(cluster), now) for cluster, ids in jobs_of.items()]
    jobs = {job_id: job for answer in answers for job_id, job in answer.jobs.items()}
    answer = Answer(jobs, "; ".join(filter(None, (a.problem for a in answers))), now)
    _keep(files, answer)
    return answer


def _ask(job_ids: Sequence[str], run: Runner, now: float) -> Answer:
    try:
        jobs = _queue(job_ids, run)
    except ClusterError as error:
        return Answer({}, _short(error), now)
    over = [job_id for job_id in job_ids if job_id not in jobs]
    problem = ""
    if over:
        try:
            jobs |= {job: QueuedJob(state) for job, state in past_states(over, run).items()}
        except ClusterError as error:  # many clusters keep no accounts
            problem = _short(error)
    return Answer(jobs, problem, now)


def _short(error: ClusterError) -> str:
    """Return the first line of an error, of which tools without a controller print many."""
    return str(error).splitlines()[0]


def _queue(job_ids: Sequence[str], run: Runner) -> dict[str, QueuedJob]:
    words = ["squeue", "--array", "--noheader", f"--jobs={','.join(job_ids)}"]
    # For some minutes it also knows the jobs that are over, where no accounts are kept.
    words += ["--states=all", "--format=%i|%T|%r|%S"]
    try:
        text = run(words)
    except ClusterError as error:
        if "Invalid job id" in str(error):  # it is over, and squeue has forgotten it
            return {}
        raise
    jobs: dict[str, QueuedJob] = {}
    # Before the jobs of a named cluster squeue prints a line with its name.
    for line in (line for line in text.splitlines() if line.count("|") == 3):
        job_id, state, reason, start = line.strip().split("|")
        jobs[job_id] = QueuedJob(state, _named(reason), _named(start))
    return jobs


def _named(text: str) -> str:
    return "" if text in ("None", "N/A", "(null)") else text


def _cache_files(directory: Path) -> list[Path]:
    """Return the files for answers: with the run, else (no job/, or not writable) with the user."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(str(directory.resolve()).encode()).hexdigest()[:16]
    shared = [directory / "job" / CACHE] if (directory / "job").is_dir() else []
    return [*shared, home / "verl_hpc" / f"slurm-{name}.json"]


def _keep(files: Sequence[Path], answer: Answer) -> None:
    for file in files:
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            write_record(file, answer)
        except OSError:
            continue
        return
