"""Trainers of one process that a launcher has started several times."""

import pytest

import verl_hpc
from verl_hpc.errors import ConfigError


@pytest.mark.parametrize(
    "variable", ["PMI_SIZE", "OMPI_COMM_WORLD_SIZE", "WORLD_SIZE", "SLURM_STEP_NUM_TASKS"]
)
def test_one_of_several_ranks_is_refused_before_anything_is_read(monkeypatch, variable):
    """Hydra (MPICH, and srun with pmi2), Open MPI, torchrun and srun tell their ranks so."""
    monkeypatch.setenv(variable, "2")
    said = r"^PPOTrainer: this process is one of 2 ranks.*without mpiexec.*verl_hpc train --ranks 2"
    with pytest.raises(ConfigError, match=said):
        verl_hpc.PPOTrainer(None)
