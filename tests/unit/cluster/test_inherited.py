"""Variables that a job inherits, and those that are true of the submitting process alone."""

import os

import pytest

from verl_hpc.cluster.inherited import job_environment, stays_behind, unused_options

LEFT = """SLURM_JOB_ID SLURM_MEM_PER_NODE SLURM_CPU_BIND SLURM_TRES_PER_TASK SLURM_EXPORT_ENV
SBATCH_PARTITION SBATCH_EXPORT SRUN_CPUS_PER_TASK SQUEUE_STATES PMI_RANK PMIX_SERVER_URI41
OMPI_COMM_WORLD_RANK HYDI_CONTROL_FD RANK MASTER_ADDR CUDA_VISIBLE_DEVICES ROCR_VISIBLE_DEVICES
OMP_PROC_BIND XDG_RUNTIME_DIR MPLBACKEND PYTHONHOME LD_PRELOAD TRITON_CACHE_DIR VERL_HPC_ATTEMPT
VERL_HPC_END_TIME"""
KEPT = """SLURM_CONF SLURM_CLUSTERS PATH LD_LIBRARY_PATH PYTHONPATH HOME LANG WANDB_API_KEY
OMPI_MCA_pml HF_HOME BASH_ENV"""


def test_what_is_true_of_another_job_stays_behind_and_the_rest_travels():
    names = LEFT.split()
    assert [name for name in (*names, *KEPT.split()) if stays_behind(name)] == names
    assert [name for name in names if stays_behind(name, passed=[name])] == [], "passed by name"


def test_the_process_has_its_own_again(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    with pytest.raises(KeyError), job_environment():
        assert "SLURM_JOB_ID" not in os.environ
        raise KeyError
    assert os.environ["SLURM_JOB_ID"] == "7"
    # Options that are left aside are told.
    environ = {"SBATCH_GRES": "x", "SBATCH_ACCOUNT": "a", "SBATCH_QOS": "q", "SLURM_CONF": "c"}
    assert unused_options(environ) == ["SBATCH_GRES"]
