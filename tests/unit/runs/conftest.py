"""A process that Slurm has not started, and a directory of a start's logs."""

import os

import pytest


@pytest.fixture(autouse=True)
def no_job(monkeypatch):
    for name in [name for name in os.environ if name.startswith(("SLURM_", "VERL_HPC_ATTEMPT"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def attempt(tmp_path):
    directory = tmp_path / "job/attempts/0"
    directory.mkdir(parents=True)
    return directory
