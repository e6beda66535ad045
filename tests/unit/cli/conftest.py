"""A user's shell without Slurm, and a run to look at from it."""

import pytest

from tests.unit.cli.status_runs import beat, make_run, without_slurm, work
from verl_hpc.cli.main import main


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    return tmp_path


@pytest.fixture
def working_run(here, monkeypatch):
    """A run of 40 steps in the middle of its third."""
    without_slurm(here, monkeypatch)
    run = make_run(here / "runs", "ppo_lab", steps=40)
    work(run, 2)
    beat(run, "update_actor", 3, total_steps=40)
    return run


@pytest.fixture
def prints(capsys):
    """Call the program, which must succeed; gives its standard output."""
    return lambda *words: _call(capsys, words, 0).out


@pytest.fixture
def refuses(capsys):
    """Call the program, which must end with status 1; gives its standard error."""
    return lambda *words: _call(capsys, words, 1).err


def _call(capsys, words, status):
    assert main([str(word) for word in words]) == status
    return capsys.readouterr()
