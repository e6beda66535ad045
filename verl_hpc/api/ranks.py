"""Refuse to train in one of several processes that a launcher has started."""

from __future__ import annotations

import torch.distributed as dist

from verl_hpc.errors import ConfigError
from verl_hpc.runtime.environment import setting

_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS")
"""Variables in which launchers give the number of ranks."""


def check_one_process(what: str) -> None:
    """Refuse to be one of several ranks: each would train a copy of its own, and all would write
    the same files.

    Args:
        what: name of the class, for the message.

    Raises:
        ConfigError: this is one of several ranks.
    """
    num_ranks = _num_ranks()
    if num_ranks > 1:
        raise ConfigError(
            f"{what}: this process is one of {num_ranks} ranks, and a model that is handed over in "
            "Python is whole on each of them, so that each would train a copy of its own. Start "
            "the program without mpiexec, srun or torchrun; for several ranks, a run of "
            f"`python -m verl_hpc train --ranks {num_ranks}` (or srun, mpiexec) reshards in every "
            "step between the layout of `parallel` and that of `rollout` "
            "(rollout.tensor_parallel, rollout.grouping: zero_redundancy)"
        )


def _num_ranks() -> int:
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    sizes = [setting(name, "1") for name in _SIZES]
    return max(int(size) if size.isdigit() else 1 for size in sizes)
