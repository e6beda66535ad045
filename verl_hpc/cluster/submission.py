"""Handing a script to sbatch, through submitit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from verl_hpc.cluster.checks import check_passed, check_paths
from verl_hpc.cluster.inherited import job_environment
from verl_hpc.cluster.job import Job
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.run_directory import make_directories, write_job
from verl_hpc.cluster.setting import DEFAULT, Setting
from verl_hpc.cluster.sweep import Sweep, array_directives
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.jobs import read_jobs, record_job
from verl_hpc.runs.lock import RunLock
from verl_hpc.slurm.tools import Runner, my_scripts, on_cluster, scancel


def submit(
    request: Request, job: Job, script: str, report: str, run: Runner | None = None
) -> list[str]:
    """Write the run directory and submit the job, or all jobs of its chain.

    Returns:
        Job ids, the first to start first.

    Raises:
        ConfigError: a file that the run needs is missing, or the run directory cannot be written.
        ClusterError: Slurm is not here or refuses, or an earlier job of the run is not over.
    """
    _check(job)
    check_paths(request, job)
    restarts = job.restarts
    links = restarts.most + 1 if restarts is not None and restarts.by == "chain" else 1
    ids: list[str] = []
    make_directories(request)
    with only_submission(request.run_directory, request.run_directory / "job"):
        refuse_two_jobs(request, run)
        directory = write_job(request, script, report)
        for _ in range(links):
            after = [Setting("dependency", f"afterany:{ids[-1]}", DEFAULT)] if ids else []
            ids.append(_sbatch(directory, script, [*job.directives, *after], job))
            _record(directory, request, ids[-1])
    return ids


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
    _check(sweep.runs[0].job)
    for one in sweep.runs:
        check_paths(one.request, one.job)
        make_directories(one.request)
    with only_submission(sweep.directory, sweep.directory):
        for one in sweep.runs:
            refuse_two_jobs(one.request, run)
        return _submit_array(sweep, array, scripts, reports)


def _submit_array(sweep: Sweep, array: str, scripts: Sequence[str], reports: Sequence[str]) -> str:
    made = zip(sweep.runs, scripts, reports, strict=True)
    jobs = [write_job(one.request, script, report) for one, script, report in made]
    (sweep.directory / "goal").unlink(missing_ok=True)
    (sweep.directory / "sweep.sbatch").write_text(array, encoding="utf-8")
    given = [{"run": str(index), "given": one.words} for index, one in enumerate(sweep.runs)]
    (sweep.directory / "sweep.json").write_text(json.dumps(given, indent=1) + "\n", "utf-8")
    directives = array_directives(sweep)
    array_id = _sbatch(sweep.directory, array, directives, sweep.runs[0].job)
    for index, (directory, one) in enumerate(zip(jobs, sweep.runs, strict=True)):
        _record(directory, one.request, f"{array_id}_{index}")
    return array_id


def _check(job: Job) -> None:
    if shutil.which("sbatch") is None:
        raise ClusterError(
            "sbatch is not on PATH: submit from a login node of a Slurm cluster, or add --dry-run "
            "to see what would be submitted"
        )
    check_passed(job)


@contextmanager
def only_submission(run: Path, place: Path) -> Iterator[None]:
    """Hold a run, or a sweep, against other submissions of it while the body runs.

    Args:
        run: its directory, for messages.
        place: an existing directory for the lock's file.

    Raises:
        ClusterError: another process is submitting it.
    """
    try:
        lock = RunLock(place)
    except ConfigError:
        raise ClusterError(
            f"{run}: another process is submitting this run right now; look at it with `python -m "
            f"verl_hpc status {run}`, or choose another name=..."
        ) from None
    with lock:
        yield


def _record(directory: Path, request: Request, job_id: str) -> None:
    now = datetime.now(UTC).isoformat(timespec="seconds")
    facts = {"job_id": job_id, "submitted": now, "nodes": request.nodes}
    if (cluster := request.profile.site.cluster) is not None:
        facts |= {"cluster": cluster}
    record_job(directory, {**facts, "ranks": request.num_ranks, "time": request.time})


def refuse_two_jobs(request: Request, run: Runner | None = None) -> None:
    """Two jobs that train into one run directory would destroy each other's checkpoints.

    A submission that was cut off between sbatch and its record leaves a job that only Slurm knows;
    it is told by where its script lies, and recorded.

    Raises:
        ClusterError: an earlier job of this run is still in the queue.
    """
    directory = request.run_directory / "job"
    if not (directory / "job.sbatch").is_file():  # nobody has submitted it
        return
    recorded = {facts["job_id"] for facts in read_jobs(directory)}
    cluster = request.profile.site.cluster
    for job_id, (state, script) in my_scripts(run or on_cluster(cluster)).items():
        if job_id not in recorded and not _is_ours(request, job_id, Path(script)):
            continue
        note = ""
        if job_id not in recorded:
            _record(directory, request, job_id)
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


def _sbatch(directory: Path, script: str, directives: Sequence[Setting], job: Job) -> str:
    # Only here: a dry run, and --help, need none of it.
    from submitit import SlurmExecutor
    from submitit.core.utils import FailedJobError, FailedSubmissionError

    class ScriptExecutor(SlurmExecutor):
        """Submits our script where submitit would write its own."""

        def _make_submission_file_text(self, command: str, uid: str) -> str:
            del command, uid
            return script

        def _make_submission_command(self, submission_file_path: Path) -> list[str]:
            # Words of the command line beat variables of the environment, which beat the script.
            words = [f"--{setting.text}" for setting in directives]
            return ["sbatch", *words, str(submission_file_path)]

    try:
        with job_environment({setting.name for setting in job.passed}):
            return str(ScriptExecutor(directory)._submit_command("").job_id)
    except (FailedJobError, FailedSubmissionError) as error:
        hint = ""
        if "Invalid node name" in str(error):
            hint = (
                "; a node that is left out may be gone: `python -m verl_hpc doctor --excluded` "
                "lists them, and --forget NODE takes one off the list"
            )
        raise ClusterError(f"sbatch refuses: {error}{hint}") from None
