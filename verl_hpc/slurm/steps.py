"""Steps of a job, as the variables of their processes tell of them."""

from __future__ import annotations

from collections.abc import Mapping

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the steps of salloc's shell and of batch scripts from here (slurm.h)."""


def is_task_of_srun(environ: Mapping[str, str]) -> bool:
    """Whether srun has started a process as a task of a step.

    A batch script, and a shell of salloc, have variables of the job, and numbers of steps that no
    srun has.
    """
    step = environ.get("SLURM_STEP_ID", "")
    return step.isdecimal() and int(step) < _FIRST_SPECIAL_STEP
