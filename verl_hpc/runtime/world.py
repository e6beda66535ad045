"""Who am I: rank, size, node and device, read once and cross-checked.

MPI says it (whatever process manager started us: PMIx, PMI2, hydra), or Slurm; the launcher's
environment must agree. What this module refuses would otherwise run and be silently wrong.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from verl_hpc.errors import ClusterError, LaunchError
from verl_hpc.runtime.device import check_devices, find_device
from verl_hpc.slurm.steps import is_task_of_srun

if TYPE_CHECKING:
    from verl_hpc.runtime.control import Control


DeviceChoice = Literal["auto", "cpu", "any"]


@dataclass(frozen=True)
class World:
    """Place of this process in the job. Four ranks on two nodes::

    rank        0  1  2  3
    node        0  0  1  1
    local_rank  0  1  0  1
    """

    rank: int
    size: int
    local_rank: int
    local_size: int
    node: int
    node_of: tuple[int, ...]
    """Node index of every rank, nodes counted in order of their lowest rank."""
    host: str
    device: str
    """"cpu", or "cuda:i" with i the index among the devices this process sees."""

    @property
    def num_nodes(self) -> int:
        return len(set(self.node_of))

    @property
    def device_index(self) -> int:
        """Index of the GPU among those this process sees; the local rank on CPUs."""
        return self.local_rank if self.device == "cpu" else int(self.device.split(":")[1])

    def __str__(self) -> str:
        return f"rank {self.rank} of {self.size} on {self.host} ({self.device})"


def read_world(control: Control, library: str, device: DeviceChoice = "auto") -> World:
    """Read the world; every rank must call it.

    Args:
        control: of all ranks.
        library: what carries it, for messages.
        device: "auto" takes this rank's GPU where there is one, and refuses a job that was
            promised GPUs and cannot use them; "cpu" computes on cores; "any" takes GPUs where every
            rank can use its own, else cores, for those who want to find out what is wrong.

    Raises:
        LaunchError: the launcher started more processes than MPI knows of, or its environment is
            only half set.
        ClusterError: as `device.check_devices`.
    """
    rank, size = control.rank, control.size
    check_launch(os.environ, rank, size, library)
    host = socket.gethostname()
    hosts = control.allgather(host)
    node_of = number_nodes(hosts)
    on_node = [r for r in range(size) if node_of[r] == node_of[rank]]
    local_rank = on_node.index(rank)
    name = "cpu" if device == "cpu" else _agree(control, device, host, local_rank, len(on_node))
    return World(rank, size, local_rank, len(on_node), node_of[rank], node_of, host, name)


def _agree(control: Control, choice: DeviceChoice, host: str, local_rank: int, num: int) -> str:
    """Name this rank's device, when all ranks have theirs."""
    found = control.allgather(find_device(host, local_rank, num))
    try:
        control.together(lambda: check_devices(found))
    except ClusterError:
        if choice == "auto":
            raise
        return "cpu"
    return found[control.rank].name


def number_nodes(hosts: Sequence[str]) -> tuple[int, ...]:
    """Node index of each rank: ["b", "b", "a"] gives (0, 0, 1)."""
    index: dict[str, int] = {}
    return tuple(index.setdefault(host, len(index)) for host in hosts)


def check_launch(environ: Mapping[str, str], rank: int, size: int, library: str) -> None:
    """Compare what the launcher announced with what MPI found.

    Raises:
        LaunchError: they differ, or the environment is half set.
    """
    pairs = [("RANK", "WORLD_SIZE"), ("PMI_RANK", "PMI_SIZE")]
    # Within salloc a shell has the job's number of tasks, and is none of them.
    if "SLURM_PROCID" in environ or is_task_of_srun(environ):
        pairs.append(("SLURM_PROCID", "SLURM_NTASKS"))
    for pair in pairs:
        present = [name for name in pair if name in environ]
        if len(present) == 1:
            missing = next(name for name in pair if name not in environ)
            raise LaunchError(
                f"{present[0]}={environ[present[0]]} is set and {missing} is not; unset it, or "
                "start with mpiexec or srun, which set both"
            )
    announced = _announced(environ)
    if announced is None:
        return
    where, expected_rank, expected_size = announced
    if size == 1 and expected_size > 1:
        raise LaunchError(
            f"{where} announces {expected_size} processes, but {library} sees only itself: "
            "the process manager and the MPI library do not understand each other. Under Slurm "
            "choose the plugin that `srun --mpi=list` offers and the library speaks (MPICH: "
            "--mpi=pmi2, Open MPI: --mpi=pmix), or do without MPI (--mpi=none and --bootstrap "
            "slurm); without Slurm use the mpiexec of that library"
        )
    if (rank, size) != (expected_rank, expected_size):
        raise LaunchError(
            f"{where} says rank {expected_rank} of {expected_size}, {library} says rank "
            f"{rank} of {size}; a nested launcher? Start with one srun or one mpiexec"
        )


def _announced(environ: Mapping[str, str]) -> tuple[str, int, int] | None:
    """(who, rank, size) by the launcher nearest to the process, None if there was none."""
    if "PMI_SIZE" in environ:
        return "the process manager (PMI_SIZE)", int(environ["PMI_RANK"]), int(environ["PMI_SIZE"])
    if is_task_of_srun(environ) and "SLURM_NTASKS" in environ:
        rank, size = environ["SLURM_PROCID"], environ["SLURM_NTASKS"]
        return "Slurm (SLURM_NTASKS)", int(rank), int(size)
    if "WORLD_SIZE" in environ:
        return "torchrun (WORLD_SIZE)", int(environ["RANK"]), int(environ["WORLD_SIZE"])
    return None
