"""The doctor as a rank of a job."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from verl_hpc.cluster.profile import Profile
from verl_hpc.errors import ConfigError
from verl_hpc.runs.verdict import Verdict, any_fails

if TYPE_CHECKING:
    from verl_hpc.runtime.preflight.gpu import Gpu

_TIMEOUT_S = 120.0
"""Time limit of a collective, which finds nodes that do not answer."""
_LATE_AFTER_S = 20.0


def inside(arguments: argparse.Namespace, profile: Profile | None) -> int:
    """Check nodes; every rank of the job calls it.

    Returns:
        Exit status: 1 if a check fails.
    """
    # This forks, so it comes before MPI is started.
    from verl_hpc.runtime.preflight.gpu import read_gpus

    # On two nodes NCCL's trees exceed the network (NVIDIA/nccl-tests issue 196).
    os.environ.setdefault("NCCL_ALGO", "Ring")
    gpus = read_gpus()
    from verl_hpc.runtime import environment

    with TemporaryDirectory() as temporary:
        nccl_log = environment.log_nccl(Path(temporary, "nccl.log"))
        verdicts = _in_session(arguments, profile, gpus, nccl_log)
    return 1 if any_fails(verdicts) else 0


def _in_session(
    arguments: argparse.Namespace, profile: Profile | None, gpus: list[Gpu] | str, nccl_log: Path
) -> list[Verdict]:
    from verl_hpc.runtime import environment
    from verl_hpc.runtime.session import session

    directory = arguments.out or Path.cwd()
    without_mpi = profile is not None and profile.site.mpi == "none"
    with session(
        collective_timeout_s=_TIMEOUT_S,
        late_after_s=_LATE_AFTER_S,
        device="any",  # the verdicts say what is wrong with a device
        bootstrap="slurm" if without_mpi else "mpi",
    ) as here:
        from verl_hpc.runtime.preflight.examine import (
            examine,
            measured_path,
            result_path,
            write_measured,
            write_result,
        )

        here.control.together(lambda: _check(directory))
        site = None if profile is None else profile.site
        verdicts, measured = examine(
            here, site, directory, _scratch(arguments, profile), gpus, nccl_log, arguments.nodes
        )
        job = environment.job_id()
        path = result_path(directory, job)

        def write() -> None:
            if here.world.rank:
                return
            # The result is what others wait for: it comes last.
            if measured is not None:
                write_measured(measured_path(directory, job), measured)
            write_result(path, verdicts)

        if here.world.rank == 0:
            print("\n".join(map(str, verdicts)), flush=True)
        here.control.together(write)
    return verdicts


def _scratch(arguments: argparse.Namespace, profile: Profile | None) -> Path:
    """Return the job's directory on each node, as named by the batch script, or its parent."""
    from verl_hpc.runtime import environment

    if arguments.scratch is not None:
        return arguments.scratch
    if profile is not None:
        return environment.expanded(profile.site.node_scratch)
    return environment.scratch_directory()


def _check(directory: Path) -> None:
    if not directory.is_dir():
        raise ConfigError(f"--out {directory}: no such directory here; name one all nodes see")
