"""This module decides which variables of the submitting process travel into its job.

Slurm gives a job the environment of sbatch. Whoever submits from within a job (salloc, srun --pty,
Jupyter, VS Code) would hand on what that job is: its memory, its GPUs and the core that its shell
is bound to, which srun obeys in the new job.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager

from verl_hpc.cluster.profile import FROM_ENVIRONMENT
from verl_hpc.runs.contract import (
    ATTEMPT,
    CACHE_DIRECTORY,
    CACHES,
    END_TIME,
    GPUS_PER_NODE,
    KEPT_CACHES,
    NODE_ADDRESS,
)
from verl_hpc.slurm.programs import FILTERS, WHICH_SLURM

_LAUNCHERS = (
    "SLURM_",
    "SLURMD_",
    "SRUN_",
    "SBATCH_",
    *FILTERS,
    "SALLOC_",
    "PMI_",
    "PMI2_",
    "PMIX_",
    "PALS_",
    "HYDRA_",
    "HYDI_",
    "MPI_LOCAL",
    "OMPI_COMM_WORLD_",
    "OMPI_UNIVERSE_",
    "PRTE_",
    "MV2_COMM_WORLD_",
    "TORCHELASTIC_",
)
"""How variables begin that describe another job, step or rank."""
_PLACES = (
    ATTEMPT,
    CACHE_DIRECTORY,
    END_TIME,
    GPUS_PER_NODE,
    KEPT_CACHES,
    NODE_ADDRESS,
    "RANK",
    "WORLD_SIZE",
    "LOCAL_RANK",
    "LOCAL_WORLD_SIZE",
    "GROUP_RANK",
    "MASTER_ADDR",
    "MASTER_PORT",
    "CUDA_VISIBLE_DEVICES",
    "ROCR_VISIBLE_DEVICES",
    "HIP_VISIBLE_DEVICES",
    "GPU_DEVICE_ORDINAL",
    "NVIDIA_VISIBLE_DEVICES",
    "ZE_AFFINITY_MASK",
    "TMPDIR",
    "TMP",
    "TEMP",
    "NODE_RANK",
    "RAY_ADDRESS",
    "GOMP_CPU_AFFINITY",
    "KMP_AFFINITY",
    "OMP_PLACES",
    "OMP_PROC_BIND",
    # A directory of this login, and the drawing of a notebook's page.
    "XDG_RUNTIME_DIR",
    "DBUS_SESSION_BUS_ADDRESS",
    "MPLBACKEND",
    # Another Python's home and other programs' libraries end ranks before their first line.
    "PYTHONHOME",
    "PYTHONSTARTUP",
    "LD_PRELOAD",
)
"""Variables that are true of this node, this process or this login alone."""


def stays_behind(name: str, passed: Collection[str] = ()) -> bool:
    """Whether a variable does not travel.

    Args:
        passed: names that the site profile passes on whatever they are.
    """
    if name in passed or name in WHICH_SLURM:
        return False
    return name.startswith(_LAUNCHERS) or name in _PLACES or name in CACHES


def unused_options(environ: Mapping[str, str] = os.environ) -> list[str]:
    """The submitter's SBATCH_ variables that a submission leaves aside."""
    used = FROM_ENVIRONMENT.values()
    return sorted(name for name in environ if name.startswith("SBATCH_") and name not in used)


@contextmanager
def job_environment(passed: Collection[str] = ()) -> Iterator[None]:
    """Take away, inside the body, what does not travel.

    Args:
        passed: as of `stays_behind`.
    """
    away = {name: value for name, value in os.environ.items() if stays_behind(name, passed)}
    for name in away:
        del os.environ[name]
    try:
        yield
    finally:
        os.environ.update(away)
