"""The lab, and one run in it to which nothing happens."""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tests.slurm.runs import Run, set_pause, write_run
from verl_hpc.testing.slurm_lab import Lab, LabSettings, missing
from verl_hpc.testing.tiny import make_tiny_model

REQUIRED = "VERL_HPC_REQUIRE_SLURM"
"""Set it to 1 where the tier must not be skipped."""


@pytest.fixture(scope="session")
def slurm():
    """Skips what needs Slurm where there is none."""
    if (reason := missing()) is not None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, and {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def disk(slurm, tmp_path_factory):
    """A file system of its own; `mount -o remount,size=BYTES` changes its size."""
    directory = tmp_path_factory.mktemp("disk")
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    yield directory
    subprocess.run(["umount", directory], check=True)


@pytest.fixture(scope="session")
def lab(slurm, disk):
    """Four nodes for the whole session; they see file systems that were mounted before."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm_lab-") as directory,
        Lab(LabSettings(directory=Path(directory), kill_wait_s=6)) as running,
    ):
        yield running


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    return make_tiny_model(
        tmp_path_factory.mktemp("model"),
        "qwen2",
        tied=True,
        hidden_size=64,
        num_attention_heads=2,
        num_key_value_heads=2,
        num_hidden_layers=2,
    )


@pytest.fixture
def run(lab, model, tmp_path):
    """A run that is not submitted yet."""
    yield Run(lab, write_run(tmp_path, model))
    # What a failed test leaves would keep the next ones waiting.
    lab.run("scancel", "--me")


@pytest.fixture(scope="session")
def undisturbed(lab, model, tmp_path_factory):
    """The run to which nothing happened, over and well."""
    directory = tmp_path_factory.mktemp("undisturbed")
    config = write_run(directory, model)
    set_pause(directory, 0)
    run = Run(lab, config).submit("checkpoint.every=1")
    run.finish()
    return run


@pytest.fixture
def verl_hpc(lab, tmp_path):
    """The command line, with this lab's Slurm and a list of excluded nodes of its own."""

    def call(*words):
        return subprocess.run(
            [sys.executable, "-m", "verl_hpc", *map(str, words)],
            cwd=tmp_path,
            env=os.environ | lab.environment | {"XDG_CONFIG_HOME": str(tmp_path / "settings")},
            capture_output=True,
            text=True,
            timeout=240,
        )

    return call


def pytest_collection_modifyitems(items):
    """The longest first: workers that share the tests end at about the same time."""
    items.sort(key=lambda item: "test_random_faults" not in item.nodeid)
