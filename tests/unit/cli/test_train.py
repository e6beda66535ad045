"""`python -m verl_hpc train`, as far as it gets without any launcher."""

import os
import subprocess
import sys

from tests.unit.cluster.requests import RUN, write


def train(directory, *words):
    environ = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return subprocess.run(
        [sys.executable, "-m", "verl_hpc", "train", *words],
        cwd=directory,
        env=environ | {"PYTHONHASHSEED": "0"},
        capture_output=True,
        text=True,
    )


def test_slurms_variables_where_there_is_no_slurm(tmp_path):
    write(tmp_path / "run.yaml", RUN)
    done = train(tmp_path, "--bootstrap", "slurm", "--config", "run.yaml")
    assert done.returncode == 1
    assert done.stderr.startswith("LaunchError: --bootstrap slurm: SLURM_JOB_ID is not set")
    assert "srun --mpi=none" in done.stderr


def test_an_unknown_way_to_start(tmp_path):
    done = train(tmp_path, "--bootstrap", "ray", "--config", "run.yaml")
    assert done.returncode == 2
    assert "'mpi', 'slurm'" in done.stderr


def test_a_tutorials_file_that_cannot_be_honoured(tmp_path):
    tree = {
        "algorithm": {"name": "dapo"},
        "model": {"pretrain_model_path": "gpt2", "reward_function": "exact_match"},
        "data": {"train_path": "rows.jsonl"},
        "engine": {"actor_type": "fsdp", "num_gpus": 1},
    }
    write(tmp_path / "ppo_config.yaml", tree)
    done = train(tmp_path, "--config", "ppo_config.yaml", "trainer.device=tpu")
    assert done.returncode == 1
    assert "  algorithm: is several settings here" in done.stderr
    assert "  trainer.device: ranks take the GPUs" in done.stderr
