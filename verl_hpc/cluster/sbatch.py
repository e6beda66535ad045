"""One call of sbatch, through submitit, and what its answer means."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.cluster.inherited import job_environment
from verl_hpc.cluster.job import Job
from verl_hpc.cluster.setting import Setting
from verl_hpc.errors import ClusterError

_LOST_ANSWERS = ("timed out", "Zero Bytes were transmitted", "Message receive failure")
"""Words of sbatch where the controller's answer is missing, as in Slurm's slurm_errno.c."""


@dataclass(frozen=True)
class Queued:
    """A job that Slurm has taken."""

    job_id: str
    cluster: str | None
    """The one that sbatch names; None if it is the login nodes' own."""


class UnclearSubmissionError(ClusterError):
    """sbatch does not say whether Slurm has taken the job."""


def sbatch(directory: Path, script: str, directives: Sequence[Setting], job: Job) -> Queued:
    """Hand a script to Slurm.

    Args:
        directory: gets the script, as job/ID_submission.sh.
        script: its text.
        directives: options for sbatch's command line, which beat all others.
        job: what the script is of.

    Raises:
        ClusterError: Slurm refuses, or sbatch cannot be started.
        UnclearSubmissionError: Slurm may have taken the job.
        OSError: the script cannot be written.
    """
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
            called.extend(["sbatch", *words, str(submission_file_path)])
            return called

        @staticmethod
        def _get_job_id_from_submission_command(string: bytes | str) -> str:
            said.append(string if isinstance(string, str) else string.decode(errors="replace"))
            return str(SlurmExecutor._get_job_id_from_submission_command(string))

    called: list[str] = []
    said: list[str] = []
    try:
        with job_environment({setting.name for setting in job.passed}):
            job_id = str(ScriptExecutor(directory)._submit_command("").job_id)
    except FailedSubmissionError as error:
        raise _unclear(error) from None
    except FailedJobError as error:
        if any(words in str(error) for words in _LOST_ANSWERS):
            raise _unclear(error) from None
        hint = ""
        if "Invalid node name" in str(error):
            hint = (
                "; a node that is left out may be gone: `python -m verl_hpc doctor --excluded` "
                "lists them, and --forget NODE takes one off the list"
            )
        raise ClusterError(f"sbatch refuses: {error}{hint}") from None
    except OSError as error:
        if said:
            raise UnclearSubmissionError(
                f"sbatch says {said[-1]!r}, but {directory} cannot be written ({error}), so that "
                "`status` would not know of it; end the job with scancel, put that right, and "
                "submit again"
            ) from None
        if called:
            raise ClusterError(f"sbatch cannot be started: {error}") from None
        raise
    # "Submitted batch job 7 on cluster c2": the profile, or SLURM_CLUSTERS, has chosen one.
    told = re.search(r" on cluster (\S+)", said[-1])
    asked = next((setting.value for setting in directives if setting.name == "clusters"), None)
    return Queued(job_id, told[1] if told else asked)


def _unclear(error: Exception) -> UnclearSubmissionError:
    return UnclearSubmissionError(
        f"sbatch does not say whether Slurm has taken the job: {error}; look with `squeue --me`, "
        "or submit again later: a job that Slurm has taken is found then"
    )
