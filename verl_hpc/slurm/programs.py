"""Running the programs of a cluster: Slurm's, and those of its file systems."""

from __future__ import annotations

import errno
import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence

from verl_hpc.errors import ClusterError

FILTERS = ("SQUEUE_", "SACCT_", "SINFO_", "SCANCEL_")
"""Variables with these beginnings are a user's own formats and filters of what Slurm prints."""

OF_THE_CALLER = ("SLURM_CLUSTERS", "SLURM_JWT")
"""Variables with which a user says which cluster is asked, and by whom."""
WHICH_SLURM = ("SLURM_CONF", *OF_THE_CALLER)


def run_program(
    words: Sequence[str],
    timeout_s: float,
    *,
    statuses: Sequence[int] = (0,),
    if_missing: str = "",
    if_slow: str = "",
    variables: Mapping[str, str] | None = None,
) -> str:
    """Run a program to its end.

    Args:
        words: its name and arguments.
        timeout_s: it must answer within.
        statuses: with which it has done what was asked.
        if_missing: told after "NAME is not on PATH".
        if_slow: told after "NAME did not answer within N s".
        variables: of its environment, over those of this process.

    Returns:
        What it printed to standard output.

    Raises:
        ClusterError: it is not there, cannot be started, fails, or does not answer in time.
    """
    if shutil.which(words[0]) is None:
        raise ClusterError(f"{words[0]} is not on PATH{if_missing}")
    try:
        done = subprocess.run(
            words,
            capture_output=True,
            text=True,
            encoding="utf-8",
            errors="replace",
            check=False,
            timeout=timeout_s,
            env=_unfiltered(os.environ) | dict(variables or {}),
        )
    except subprocess.TimeoutExpired:
        raise ClusterError(f"{words[0]} did not answer within {timeout_s:.0f} s{if_slow}") from None
    except OSError as error:
        no_script = error.errno in (errno.ENOEXEC, errno.ENOENT)
        todo = "; give it a first line such as #!/bin/sh" if no_script else ""
        raise ClusterError(f"{words[0]} cannot be started ({error.strerror}){todo}") from None
    if done.returncode not in statuses:
        reason = done.stderr.strip() or f"exit status {done.returncode}"
        raise ClusterError(f"{' '.join(words)}: {reason}")
    return done.stdout


def _unfiltered(environ: Mapping[str, str]) -> dict[str, str]:
    """Variables without the user's own formats and filters of what Slurm's programs print."""
    theirs = (*FILTERS, "SLURM_TIME_FORMAT")
    return {name: value for name, value in environ.items() if not name.startswith(theirs)}
