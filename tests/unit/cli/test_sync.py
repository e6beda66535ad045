"""`sync`: which offline runs of W&B are uploaded, and the answer where none is."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys

import pytest

from tests.unit.cli.status_runs import beat, make_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def leave_offline_run(run, number: int) -> str:
    name = f"offline-run-20261125_00000{number}-abcdefg{number}"
    (run / "wandb" / name).mkdir(parents=True)
    (run / "wandb" / name / f"run-abcdefg{number}.wandb").write_bytes(b"")
    return name


def test_a_run_without_any(run, refuses):
    assert "has no offline run of W&B in wandb/" in refuses("sync", str(run))


def test_the_start_that_is_under_way_is_left_out(run, prints):
    name = leave_offline_run(run, 1)
    beat(run)
    expected = f"{name} is left out: the run is running; call this again afterwards\n"
    assert prints("sync", str(run)) == expected


def test_without_wandb_it_says_so(run, monkeypatch, refuses):
    leave_offline_run(run, 1)
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *of: None if name == "wandb" else real(name, *of)
    )
    assert "pip install wandb" in refuses("sync", str(run))


def test_what_wandb_refuses_is_an_error(run, tmp_path) -> None:
    """The real one, without a key: it names the runs of earlier starts, and uploads none."""
    earlier, newest = leave_offline_run(run, 1), leave_offline_run(run, 2)
    beat(run)
    environment = {n: v for n, v in os.environ.items() if not n.startswith("WANDB_")}
    environment |= {"WANDB_BASE_URL": "http://127.0.0.1:9", "HOME": str(tmp_path)}
    words = [sys.executable, "-m", "verl_hpc", "sync", str(run)]
    done = subprocess.run(words, capture_output=True, text=True, env=environment, cwd=tmp_path)
    assert done.returncode == 1
    assert "LaunchError: wandb sync has ended with status 1" in done.stderr
    assert earlier in done.stderr and newest not in done.stderr
    assert f"{newest} is left out" in done.stdout
    assert "Traceback" not in done.stderr
