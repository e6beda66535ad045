"""Who a rank is, and the launches that would run and be silently wrong."""

import re
from contextlib import nullcontext
from types import SimpleNamespace

import pytest

from verl_hpc.errors import LaunchError
from verl_hpc.runtime import world
from verl_hpc.runtime.world import World, check_launch, read_world

MPICH = "MPI (MPICH Version: 5.0)"


def pmi(rank, size):
    return {"PMI_RANK": str(rank), "PMI_SIZE": str(size)}


def step(rank, size):
    return {"SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_NTASKS": str(size)}


def torchrun(rank, size):
    return {"RANK": str(rank), "WORLD_SIZE": str(size)}


SHELL = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
SALLOC = SHELL | {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"}
NESTED = f"says rank %s, {re.escape(MPICH)} says rank 3 of 4; a nested launcher"
LAUNCHES = [
    ({}, 2, 4, None),
    *((pmi(2, 4) | more, 2, 4, None) for more in ({}, torchrun(2, 4), step(2, 4))),
    *((launcher(2, 4), 2, 4, None) for launcher in (step, torchrun)),
    # A world of one that was meant.
    *((environ, 0, 1, None) for environ in ({}, pmi(0, 1), step(0, 1), torchrun(0, 1))),
    # Slurm's PMI and the library's do not fit: each rank believes to be alone, none complains.
    (pmi(2, 4), 0, 1, "PMI_SIZE. announces 4 processes, but .*srun --mpi=list.*--mpi=pmi2"),
    (step(2, 4), 0, 1, "SLURM_NTASKS. announces 4 processes"),
    (torchrun(2, 4), 0, 1, "WORLD_SIZE. announces 4 processes"),
    # In a shell of salloc and in a batch script, what runs directly is one process; mpiexec within
    # them is a launch like any other.
    *((shell, 0, 1, None) for shell in (SHELL, SALLOC, SHELL | {"SLURM_PROCID": "0"})),
    *((shell | pmi(2, 4), 2, 4, None) for shell in (SHELL, SALLOC)),
    # Inside an allocation hydra starts one proxy a node by srun; the ranks are its children.
    (step(1, 2) | pmi(3, 4), 3, 4, None),
    (step(0, 1) | pmi(3, 4), 0, 1, "PMI_SIZE. announces 4"),
    # A launcher inside another.
    (step(0, 1), 3, 4, NESTED % "0 of 1"),
    (pmi(1, 2), 3, 4, NESTED % "1 of 2"),
    (torchrun(5, 8), 3, 4, NESTED % "5 of 8"),
    # Half of a launcher's variables.
    *(({name: "3"}, 0, 1, f"{name}=3 is set and {other} is not") for name, other in (
        ("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"),
        ("PMI_RANK", "PMI_SIZE"), ("PMI_SIZE", "PMI_RANK"),
    )),
    ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, 0, 1,
     "SLURM_NTASKS=4 is set and SLURM_PROCID is not"),
    ({"SLURM_PROCID": "0"}, 0, 1, "SLURM_PROCID=0 is set and SLURM_NTASKS is not"),
]  # fmt: skip
"""Variables, rank and size by MPI, and what is wrong with them."""


@pytest.mark.parametrize(("environ", "rank", "size", "words"), LAUNCHES)
def test_launches_that_would_run_and_be_silently_wrong(environ, rank, size, words):
    with pytest.raises(LaunchError, match=words) if words else nullcontext():
        check_launch(environ, rank, size, MPICH)


HOSTS = ["n1", "n0", "n1", "n0"]
"""Ranks dealt to nodes in turn; the first node is that of rank 0."""


@pytest.mark.parametrize("rank, local_rank, node", [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)])
def test_the_place_of_each_rank(monkeypatch, rank, local_rank, node):
    """One rank's view; what the others say is played back to it."""
    monkeypatch.setattr(world, "socket", SimpleNamespace(gethostname=lambda: HOSTS[rank]))
    monkeypatch.setattr(world, "os", SimpleNamespace(environ=pmi(rank, 4)))

    def allgather(mine):
        said = HOSTS if isinstance(mine, str) else [(host, None) for host in HOSTS]
        assert said[rank] == mine
        return said

    seen = read_world(SimpleNamespace(rank=rank, size=4, allgather=allgather), MPICH, device="cpu")
    assert seen == World(rank, 4, local_rank, 2, node, (0, 1, 0, 1), HOSTS[rank], "cpu")
    assert (seen.num_nodes, str(seen)) == (2, f"rank {rank} of 4 on {HOSTS[rank]} (cpu)")
