"""The doctor's job: submitting it, waiting for what its ranks find, keeping out nodes that fail."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from verl_hpc.cluster.excluded import ExcludedNode, exclude, exclude_list
from verl_hpc.cluster.explain import explain
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.profile import Profile, load_profile
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.script import render_script
from verl_hpc.cluster.submission import submit
from verl_hpc.config.regular_file import read_regular
from verl_hpc.errors import ClusterError, ConfigError
from verl_hpc.runs.logs.errors import Failure, first_error
from verl_hpc.runs.queue import WAITING
from verl_hpc.runs.reasons import explained, never_passes
from verl_hpc.runs.records import as_record
from verl_hpc.runs.verdict import Verdict, failing_nodes
from verl_hpc.slurm.steps import is_task_of_srun
from verl_hpc.slurm.tools import Runner, cancel, job_details, my_jobs, run_tool

NAME = "doctor"
"""Name of the run whose directory has the results."""

_LOOK_EVERY_S = 1.0
_ASK_EVERY_S = 30.0
_GRACE_S = 30.0
"""What a shared file system may need to show a file of another node."""


def is_inside_step(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether srun has started this process, as one of the ranks of a step.

    A step of one task is somebody's shell or notebook (`srun --pty bash`), and no rank.
    """
    is_alone = environ.get("SLURM_STEP_NUM_TASKS") == "1"
    return "SLURM_PROCID" in environ and is_task_of_srun(environ) and not is_alone


def submit_checks(request: Request) -> str:
    """Submit the job.

    Returns:
        Its id.

    Raises:
        ConfigError, ClusterError: as `submit`.
    """
    job = plan_job(request)
    (job_id,) = submit(job, render_script(job), explain(job, ()))
    return job_id


def wait_for_result(
    directory: Path,
    job_id: str,
    run: Runner = run_tool,
    sleep: Callable[[float], object] = time.sleep,
) -> list[Verdict]:
    """Wait until the job's ranks have spoken.

    Looks for the file every second; asks Slurm, every 30 s, whether the job is still there.

    Args:
        directory: of the doctor's run.
        job_id: of its job.

    Raises:
        ClusterError: the job has ended and left no result, or could not start by itself and is
            cancelled.
    """
    path = result_of(directory, job_id)
    waited, gone_since = 0.0, None
    while not path.exists():
        if waited % _ASK_EVERY_S < _LOOK_EVERY_S and gone_since is None and waited:
            states = _states(run)
            gone_since = None if states is None or job_id in states else waited
            if states is not None and states.get(job_id) in WAITING:
                _give_up_held(job_id, run)
        if gone_since is not None and waited - gone_since > _GRACE_S:
            raise ClusterError(_no_result(directory, job_id, run))
        sleep(_LOOK_EVERY_S)
        waited += _LOOK_EVERY_S
    return read_result(path)


def _states(run: Runner) -> dict[str, str] | None:
    """Return what `my_jobs` does; None without an answer, as the next question may have one."""
    try:
        return my_jobs(run)
    except ClusterError:
        return None


def result_of(directory: Path, job_id: str) -> Path:
    """Where a job's ranks leave their verdicts."""
    return directory / f"job/preflight-{job_id}.json"


def measured_beside(result: Path) -> Path | None:
    """The file of what the same job has measured; None if there is none."""
    path = result.with_name(result.name.replace("preflight", "measured"))
    return path if path.is_file() else None


def _no_result(directory: Path, job_id: str, run: Runner) -> str:
    """The job is over, and its ranks have not got as far as a verdict."""
    text = f"job {job_id} has ended without a result{_reason(job_id, run)}"
    attempt = (directory / "job/attempts/latest").resolve()
    failure = first_error(attempt) if attempt.is_dir() else None
    if failure is not None and failure.lines:
        text += f"; first: {_in_a_line(failure)}"
    log = directory / f"job/slurm-{job_id}.log"
    more = [f"`python -m verl_hpc logs {directory} --first-error`"] if failure is not None else []
    more += [str(log)] if log.is_file() else []
    return f"{text}. {' or '.join(more)} says more" if more else text


def _reason(job_id: str, run: Runner) -> str:
    """What Slurm says of a job that has ended, with what it means."""
    try:
        details = job_details(job_id, run)
    except ClusterError:  # it has forgotten the job
        return ""
    state, reason = details.get("JobState"), details.get("Reason", "None")
    if state is None:
        return ""
    return f" ({state}, {explained(reason if reason != 'None' else state, job_id)})"


def _give_up_held(job_id: str, run: Runner) -> None:
    """Cancel a job that waits for somebody's command: nobody would look at its result any more.

    Raises:
        ClusterError: it waits for one, or scancel is refused.
    """
    try:
        reason = job_details(job_id, run).get("Reason", "")
    except ClusterError:  # the next question may be answered
        return
    if (why := never_passes(reason)) is None:
        return
    cancel(job_id, run)
    raise ClusterError(
        f"job {job_id} does not start by itself, and is cancelled ({why}); start the doctor again "
        "when the cause is gone"
    )


def _in_a_line(failure: Failure) -> str:
    """A rank's report and Slurm's words begin with the cause; a bare traceback ends with it."""
    first, last = failure.lines[0].strip(), failure.lines[-1].strip()
    tells = failure.rank is None or first.startswith("verl_hpc: ")
    return first if tells else f"{failure.node}: {last}"


def read_result(path: Path) -> list[Verdict]:
    """Verdicts that ranks have left.

    Raises:
        ConfigError: there is no such file, or the doctor did not write it.
    """
    try:
        return [as_record(v, Verdict) for v in json.loads(read_regular(path))["verdicts"]]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: no result of the doctor ({error})") from None


def newest_result(directory: Path) -> tuple[Path, Profile]:
    """The last result in a doctor's run directory, and the site profile it was made with.

    Raises:
        ConfigError: there is none.
    """
    reports = sorted((directory / "job").glob("preflight-*.json"), key=lambda p: p.stat().st_mtime)
    if not reports:
        raise ConfigError(
            f"--result {directory}: no result there; name the run directory that "
            "`doctor --nodes N` printed, and see `status` on whether its job is over"
        )
    return reports[-1], load_profile(directory / "job/site.yaml")


def keep_out(profile: Profile, verdicts: list[Verdict]) -> list[ExcludedNode]:
    """Put nodes that failed on the list of those that submissions leave out."""
    return exclude(exclude_list(profile.site), profile.site, failing_nodes(verdicts))
