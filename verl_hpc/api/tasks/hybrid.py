"""What HybridFlow's 3D-HybridEngine is in one process, and where it is in a run."""

from __future__ import annotations

import torch.distributed as dist

from verl_hpc.errors import ConfigError
from verl_hpc.runtime.environment import setting

_SIZES = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE")
"""What launchers call the number of ranks."""


def hybrid_engine() -> str:
    """Says that there is nothing to reshard.

    Raises:
        ConfigError: this is one of several ranks.
    """
    num_ranks = _num_ranks()
    if num_ranks > 1:
        raise ConfigError(
            f"enable_3d_hybrid_engine: this process is one of {num_ranks} ranks, and a model that "
            "is handed over in Python is whole on each of them. A run of `python -m verl_hpc train "
            f"--ranks {num_ranks}` (or srun, mpiexec) reshards in every step between the layout of "
            "`parallel` and that of `rollout` (rollout.tensor_parallel, rollout.grouping: "
            "zero_redundancy); nothing has to be turned on there"
        )
    return (
        "3D hybrid engine: one process, in which training and generation share the weights of one "
        "module: there is one layout, and nothing to reshard"
    )


def _num_ranks() -> int:
    if dist.is_available() and dist.is_initialized():
        return int(dist.get_world_size())
    sizes = [setting(name, "1") for name in _SIZES]
    return max(int(size) if size.isdigit() else 1 for size in sizes)
