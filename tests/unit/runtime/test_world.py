"""Who a rank is, and the launches that would run and be silently wrong."""

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


@pytest.mark.parametrize(
    "environ, who",
    [(pmi(2, 4), "PMI_SIZE"), (step(2, 4), "SLURM_NTASKS"), (torchrun(2, 4), "WORLD_SIZE")],
    ids=["mpiexec", "srun", "torchrun"],
)
def test_four_processes_that_are_four_worlds_of_one(environ, who):
    """Slurm's PMI and the library's do not fit: each rank believes to be alone, none complains."""
    with pytest.raises(LaunchError) as caught:
        check_launch(environ, 0, 1, MPICH)
    message = str(caught.value)
    for words in (f"({who}) announces 4 processes", MPICH, "srun --mpi=list", "--mpi=pmi2"):
        assert words in message


LAUNCHERS = {"none": {}, "mpiexec": pmi(2, 4), "srun": step(2, 4), "torchrun": torchrun(2, 4)}
LAUNCHERS |= {"mpiexec, then torch": pmi(2, 4) | torchrun(2, 4)}
LAUNCHERS |= {"srun with pmi2": pmi(2, 4) | step(2, 4)}


@pytest.mark.parametrize("environ", LAUNCHERS.values(), ids=LAUNCHERS)
def test_launchers_that_agree_with_mpi(environ):
    check_launch(environ, 2, 4, MPICH)


@pytest.mark.parametrize("environ", [{}, pmi(0, 1), step(0, 1), torchrun(0, 1)])
def test_a_world_of_one_that_was_meant(environ):
    check_launch(environ, 0, 1, MPICH)


SHELL = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4"}
SHELLS = [SHELL | more for more in ({}, {"SLURM_STEP_ID": "4294967290", "SLURM_PROCID": "0"})]


@pytest.mark.parametrize("shell", [*SHELLS, SHELL | {"SLURM_PROCID": "0"}])
def test_a_shell_of_salloc_and_a_batch_script_are_not_a_step(shell):
    """What runs there directly is one process; mpiexec within them is a launch like any other."""
    check_launch(shell, 0, 1, MPICH)
    check_launch(shell | pmi(2, 4), 2, 4, MPICH)


def test_mpiexec_counts_for_more_than_the_step_that_carries_it():
    """Inside an allocation hydra starts one proxy a node by srun; the ranks are its children."""
    check_launch(step(1, 2) | pmi(3, 4), 3, 4, MPICH)
    with pytest.raises(LaunchError, match=r"PMI_SIZE\) announces 4"):
        check_launch(step(0, 1) | pmi(3, 4), 0, 1, MPICH)


@pytest.mark.parametrize("environ", [step(0, 1), pmi(1, 2), torchrun(5, 8), pmi(1, 4)])
def test_a_launcher_inside_another(environ):
    with pytest.raises(LaunchError) as caught:
        check_launch(environ, 3, 4, MPICH)
    message = str(caught.value)
    rank, size = list(environ.values())[-2:]
    assert f"says rank {rank} of {size}, {MPICH} says rank 3 of 4" in message
    assert "nested launcher" in message


HALVES = [
    *(({name: "3"}, f"{name}=3 is set and {other} is not") for name, other in (
        ("RANK", "WORLD_SIZE"), ("WORLD_SIZE", "RANK"),
        ("PMI_RANK", "PMI_SIZE"), ("PMI_SIZE", "PMI_RANK"),
    )),
    ({"SLURM_STEP_ID": "0", "SLURM_NTASKS": "4"}, "SLURM_NTASKS=4 is set and SLURM_PROCID is not"),
    ({"SLURM_PROCID": "0"}, "SLURM_PROCID=0 is set and SLURM_NTASKS is not"),
]  # fmt: skip


@pytest.mark.parametrize("environ, words", HALVES)
def test_a_half_set_environment_is_named(environ, words):
    with pytest.raises(LaunchError, match=words):
        check_launch(environ, 0, 1, MPICH)


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
