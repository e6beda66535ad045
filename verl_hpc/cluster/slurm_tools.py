"""Asking Slurm: scontrol, squeue and sacct as functions. Nothing else here starts a program of it.

Questions are asked once per call and never polled; a login node's controller serves everybody.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterable, Sequence

from verl_hpc.errors import ClusterError

Runner = Callable[[Sequence[str]], str]
"""Runs a command and returns what it printed; tests put their own in."""

_TIMEOUT_S = 60.0


def run_tool(words: Sequence[str]) -> str:
    """Run one of Slurm's programs.

    Returns:
        What it printed to standard output.

    Raises:
        ClusterError: it is not there, fails, or does not answer within a minute.
    """
    if shutil.which(words[0]) is None:
        raise ClusterError(
            f"{words[0]} is not on PATH: this is no node of a Slurm cluster, or its module is not "
            "loaded; log in to one (a dry run works anywhere)"
        )
    try:
        done = subprocess.run(
            words, capture_output=True, text=True, check=False, timeout=_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(
            f"{words[0]} did not answer within {_TIMEOUT_S:.0f} s; is the controller overloaded? "
            "Try again later"
        ) from None
    if done.returncode:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise ClusterError(f"{' '.join(words)}: {reason}")
    return done.stdout


def my_jobs(run: Runner = run_tool) -> dict[str, str]:
    """State of each of the user's jobs in the queue, by job id: {"4711": "PENDING"}."""
    return _pairs(run(["squeue", "--me", "--noheader", "--format=%A %T"]))


def past_states(job_ids: Iterable[str], run: Runner = run_tool) -> dict[str, str]:
    """What accounting knows of jobs, by job id; needs a cluster with slurmdbd.

    Raises:
        ClusterError: there is no accounting.
    """
    jobs = ",".join(job_ids)
    words = ["sacct", "--noheader", "--parsable2", "--allocations", "--format=JobIDRaw,State"]
    # "CANCELLED by 1000" is CANCELLED.
    return _pairs(run([*words, f"--jobs={jobs}"]).replace("|", " "))


def job_details(job_id: str, run: Runner = run_tool) -> dict[str, str]:
    """The fields of `scontrol show job`: JobState, EndTime, NodeList, Restarts, ..."""
    words = run(["scontrol", "--oneliner", "show", "job", job_id]).split()
    return dict(word.partition("=")[::2] for word in words if "=" in word)


def mpi_plugins(run: Runner = run_tool) -> list[str]:
    """What `srun --mpi=` takes here."""
    lines = run(["srun", "--mpi=list"]).replace("srun: ", "").splitlines()
    # A heading has several words, a plugin is one.
    return [line.strip() for line in lines if len(line.split()) == 1]


def _pairs(text: str) -> dict[str, str]:
    rows = (line.split() for line in text.splitlines())
    return {row[0]: row[1] for row in rows if len(row) > 1}
