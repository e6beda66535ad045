"""A user's shell without Slurm, and a run to look at from it."""

import pytest

from tests.unit.cli.status_runs import beat, make_run, without_slurm, work


@pytest.fixture
def here(here, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(here / "cache"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return here


@pytest.fixture
def run(here, monkeypatch):
    """A run of 40 steps in the middle of its third."""
    without_slurm(here, monkeypatch)
    run = make_run(here / "runs", "ppo_lab", steps=40)
    work(run, 2)
    beat(run, "update_actor", 3, total_steps=40)
    return run
