"""Submitting a run, a chain or a sweep: its directory, its jobs, and their record."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from verl_hpc.cluster.checks import check_passed, check_paths
from verl_hpc.cluster.job import Job
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.run_directory import (
    make_directories,
    make_directory,
    missing,
    site_umask,
    write_job,
    writing,
)
from verl_hpc.cluster.sbatch import Queued, UnclearSubmissionError, sbatch
from verl_hpc.cluster.setting import DEFAULT, Setting
from verl_hpc.cluster.sweep import Sweep, array_directives
from verl_hpc.errors import ClusterError, ConfigError, InUseError
from verl_hpc.runs.jobs import JOBS, cluster_of, read_jobs, record_job
from verl_hpc.runs.lock import RunLock
from verl_hpc.slurm.tools import Runner, my_scripts, on_cluster, scancel


def submit(job: Job, script: str, report: str, run: Runner | None = None) -> list[str]:
    """Write the run directory and submit the job, or all jobs of its chain.

    A submission that is refused leaves no directory that was not there before.

    Returns:
        Job ids, the first to start first.

    Raises:
        ConfigError: a file that the run needs is missing, or the run directory cannot be written.
        ClusterError: Slurm is not here or refuses, or an earlier job of the run is not over.
    """
    _check(job)
    check_paths(job)
    request, restarts, site = job.request, job.restarts, job.site
    place = request.run_directory
    links = restarts.most + 1 if restarts is not None and restarts.by == "chain" else 1
    ids: list[str] = []
    with writing(request, place):
        _refuse_other_kind(place, "sweep.sbatch", "the directory of a sweep")
        new = missing(place)
    make_directories(request)
    with site_umask(site), only_submission(request, place, place / "job"):
        refuse_two_jobs([request], run)
        with _removed_if_refused(new):
            directory = write_job(request, script, report)
            with writing(request, place):
                queued = sbatch(directory, script, job.directives, job)
        ids.append(_record(directory, request, queued))
        while len(ids) < links:
            after = Setting("dependency", f"afterany:{ids[-1]}", DEFAULT)
            with _told_of_links(ids, queued.cluster), writing(request, place):
                queued = sbatch(directory, script, [*job.directives, after], job)
            ids.append(_record(directory, request, queued))
    return ids


@contextmanager
def _told_of_links(ids: Sequence[str], cluster: str | None) -> Iterator[None]:
    """Say which jobs of a chain are in the queue when the body's is refused."""
    try:
        yield
    except (ClusterError, ConfigError) as error:
        raise type(error)(
            f"{error}; the chain's first jobs are in the queue, and will run: {' '.join(ids)}. End "
            f"them with `{scancel(cluster, *ids)}`, or let them run; --max-restarts "
            f"{len(ids) - 1} asks for no more"
        ) from None


def _refuse_other_kind(place: Path, file: str, what: str) -> None:
    """Keep a run out of a sweep's directory, and a sweep out of a run's.

    Raises:
        ConfigError: the directory has the other kind's script, `file`.
    """
    if (place / file).exists():
        raise ConfigError(f"{place} is {what}; choose another with name=... or directory=...")


def submit_sweep(
    sweep: Sweep,
    array: str,
    scripts: Sequence[str],
    reports: Sequence[str],
    run: Runner | None = None,
) -> str:
    """Write the run directories of a sweep and submit its array.

    Args:
        sweep: its runs.
        array: the array's script.
        scripts: of each run.
        reports: of each run, what a dry run says.

    Returns:
        The array's job id.

    Raises:
        ConfigError, ClusterError: as `submit`.
    """
    first, place = sweep.runs[0], sweep.directory
    _check(first.job)
    for one in sweep.runs:
        check_paths(one.job)
    site, requests = first.job.site, [one.job.request for one in sweep.runs]
    with writing(requests[0], place):
        _refuse_other_kind(place, "job/job.sbatch", "the directory of a single run")
        new = missing(place)
        make_directory(place, site)
    with site_umask(site), only_submission(requests[0], place, place):
        refuse_two_jobs(requests, run)
        runs = [missing(request.run_directory) for request in requests]
        with _removed_if_refused(*runs, new):
            jobs, queued = _submit_array(sweep, array, scripts, reports)
        for index, (directory, request) in enumerate(zip(jobs, requests, strict=True)):
            run_of_it = replace(queued, job_id=f"{queued.job_id}_{index}")
            _record(directory, request, run_of_it)
    return queued.job_id


def _submit_array(
    sweep: Sweep, array: str, scripts: Sequence[str], reports: Sequence[str]
) -> tuple[list[Path], Queued]:
    """The job/ of each run, and the array's job."""
    made = zip(sweep.runs, scripts, reports, strict=True)
    jobs = [write_job(one.job.request, script, report) for one, script, report in made]
    given = [{"run": str(index), "given": one.words} for index, one in enumerate(sweep.runs)]
    directives = array_directives(sweep)
    with writing(sweep.runs[0].job.request, sweep.directory):
        (sweep.directory / "sweep.sbatch").write_text(array, encoding="utf-8")
        (sweep.directory / "sweep.json").write_text(json.dumps(given, indent=1) + "\n", "utf-8")
        return jobs, sbatch(sweep.directory, array, directives, sweep.runs[0].job)


@contextmanager
def _removed_if_refused(*new: Sequence[Path]) -> Iterator[None]:
    """Take directories away if the body is refused; not if Slurm may have the job all the same.

    Args:
        new: for each directory, itself and those above it that were not there, as `missing` lists
            them. Those above are left to whoever else has put something into them.
    """
    fresh = [answer for answer in new if answer and not _is_submitted(answer[0])]
    try:
        yield
    except UnclearSubmissionError:
        raise
    except (ClusterError, ConfigError):
        for inner, *above in fresh:
            shutil.rmtree(inner, ignore_errors=True)
            with suppress(OSError):
                for directory in above:
                    directory.rmdir()
        raise


def _is_submitted(directory: Path) -> bool:
    """Whether somebody has submitted a run, or a sweep, meanwhile."""
    return any((directory / name).exists() for name in ("job/job.sbatch", "sweep.sbatch"))


def _check(job: Job) -> None:
    if shutil.which("sbatch") is None:
        raise ClusterError(
            "sbatch is not on PATH: submit from a login node of a Slurm cluster, or add --dry-run "
            "to see what would be submitted"
        )
    check_passed(job)


@contextmanager
def only_submission(request: Request, run: Path, place: Path) -> Iterator[None]:
    """Hold a run, or a sweep, against other submissions of it while the body runs.

    Args:
        request: of the run, or of the sweep's first one.
        run: its directory, for messages.
        place: an existing directory for the lock's file.

    Raises:
        ClusterError: another process is submitting it.
        ConfigError: the lock's file cannot be read or written.
    """
    try:
        with writing(request, run):
            lock = RunLock(place)
    except InUseError:
        raise ClusterError(
            f"{run}: another process is submitting this run right now; look at it with `python -m "
            f"verl_hpc status {run}`, or choose another name=..."
        ) from None
    with lock:
        yield


def _record(directory: Path, request: Request, queued: Queued) -> str:
    """Write a job down, and return its id."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    job_id, cluster = queued.job_id, queued.cluster
    facts = {"job_id": job_id, "submitted": now, "nodes": request.nodes}
    facts |= {} if cluster is None else {"cluster": cluster}
    try:
        record_job(directory, {**facts, "ranks": request.num_ranks, "time": request.time})
    except OSError as error:
        raise ClusterError(
            f"job {job_id} is submitted, but {directory / JOBS} cannot be written ({error}), so "
            f"that `status` would not know of it; end it with `{scancel(cluster, job_id)}`, put "
            "that right, and submit again"
        ) from None
    return job_id


def refuse_two_jobs(requests: Sequence[Request], run: Runner | None = None) -> None:
    """Two jobs that train into one run directory would destroy each other's checkpoints.

    Slurm is asked once for all runs, once more for each other cluster that has had their last jobs,
    and not at all about runs that nobody has submitted. A submission that was cut off between
    sbatch and its record leaves a job that only Slurm knows; it is told by where its script lies,
    and recorded.

    Args:
        requests: runs, all of one site.

    Raises:
        ClusterError: an earlier job of one of the runs is still in the queue.
    """
    earlier = [one for one in requests if (one.run_directory / "job/job.sbatch").is_file()]
    clusters = [one.profile.site.cluster for one in earlier]
    clusters += [cluster_of(one.run_directory / "job") for one in earlier]
    for cluster in dict.fromkeys(clusters):
        jobs = my_scripts(run or on_cluster(cluster))
        for request in earlier:
            _refuse_one_of(jobs, cluster, request)


def _refuse_one_of(
    jobs: Mapping[str, tuple[str, str]], cluster: str | None, request: Request
) -> None:
    """Raises: ClusterError: one of a cluster's jobs is the run's."""
    directory = request.run_directory / "job"
    known = [facts for facts in read_jobs(directory) if facts.get("cluster") == cluster]
    recorded = {facts["job_id"] for facts in known}
    for job_id, (state, script) in jobs.items():
        if job_id not in recorded and not _is_ours(request, job_id, Path(script)):
            continue
        note = ""
        if job_id not in recorded:
            _record(directory, request, Queued(job_id, cluster))
            note = " (the submission that made it was cut off; it is recorded now)"
        raise ClusterError(
            f"{request.run_directory}: its job {job_id} is {state}{note}; wait for it, end it "
            f"with `{scancel(cluster, job_id)}`, or choose another name=..."
        )


def _is_ours(request: Request, job_id: str, script: Path) -> bool:
    """Whether a job's script was written for this run, or for the sweep that the run is one of."""
    run = request.run_directory
    _, _, index = job_id.partition("_")
    return script.parent == run / "job" or bool(index and script.parent / index == run)
