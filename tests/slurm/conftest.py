"""The lab, and one run in it to which nothing happens."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.slurm import submitter as submitters
from tests.slurm.runs import Run, cancel_all, set_pause, write_run
from verl_hpc.runs.jobs import read_jobs
from verl_hpc.testing.slurm_lab import Lab, LabSettings, missing
from verl_hpc.testing.slurm_lab.root import as_root
from verl_hpc.testing.tiny import make_tiny_model

REQUIRED = "VERL_HPC_REQUIRE_SLURM"
"""Set it to 1 where the tier must not be skipped."""


def pytest_addoption(parser):
    parser.addoption("--submitter", choices=submitters.WHO, help=submitters.HELP)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config):
    if submits(config):
        config.option.basetemp = submitters.settle(config.getoption("submitter"))


def submits(config):
    """Whether this process is to be the submitter: no test runs in the one that starts workers."""
    runs_tests = hasattr(config, "workerinput") or not config.getoption("numprocesses", None)
    return runs_tests and config.getoption("submitter", None) is not None


def pytest_sessionfinish(session, exitstatus):
    """What failed tests have left stays."""
    if submits(session.config) and exitstatus == 0:
        with as_root():
            shutil.rmtree(Path(session.config.option.basetemp).parent)


@pytest.fixture(scope="session")
def submitter(pytestconfig):
    """Settings of labs for the submitter of this session."""
    return submitters.settings(pytestconfig.getoption("submitter", None))


@pytest.fixture(scope="session")
def slurm():
    """Skip tests that need Slurm where it is missing."""
    if (reason := missing()) is not None:
        if os.environ.get(REQUIRED) == "1":
            pytest.fail(f"{REQUIRED}=1, and {reason}")
        pytest.skip(reason)


@pytest.fixture(scope="session")
def disk(slurm, tmp_path_factory):
    """A file system of its own; `mount -o remount,size=BYTES` changes its size."""
    directory = tmp_path_factory.mktemp("disk")
    with as_root():
        subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=1777", "tmpfs", directory], check=True)
    yield directory
    with as_root():
        subprocess.run(["umount", directory], check=True)


@pytest.fixture(scope="session")
def lab(slurm, disk, submitter):
    """Four nodes for the whole session; they see file systems that were mounted before."""
    with (
        tempfile.TemporaryDirectory(prefix="slurm_lab-") as directory,
        Lab(LabSettings(directory=Path(directory), kill_wait_s=6, **submitter)) as running,
        submitters.inside_a_job(running) if running.settings.login_node else nullcontext(),
    ):
        yield running


@pytest.fixture
def place():
    """For a lab of the test's own: sockets need a short path."""
    with tempfile.TemporaryDirectory(prefix="slurm_lab-") as directory:
        yield Path(directory)


@pytest.fixture(scope="session")
def model(tmp_path_factory):
    sizes = {"hidden_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
    return make_tiny_model(tmp_path_factory.mktemp("model"), "qwen2", tied=True, **sizes, **heads)


@pytest.fixture
def run(lab, model, tmp_path):
    """A run that is not submitted yet."""
    yield Run(lab, write_run(tmp_path, model))
    # What a failed test leaves would keep the next ones waiting.
    cancel_all(lab)


@pytest.fixture(scope="session")
def undisturbed(lab, model, tmp_path_factory):
    """The run to which nothing happened, over and well; the first worker that wants it makes it."""
    shared = tmp_path_factory.getbasetemp()
    shared = shared.parent if "PYTEST_XDIST_WORKER" in os.environ else shared
    directory = shared / "undisturbed"
    with (shared / "undisturbed.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not directory.exists():
            directory.mkdir()
            config = write_run(directory, model)
            set_pause(directory, 0)
            run = Run(lab, config).submit("checkpoint.every=1")
            run.finish()
            assert run.nodes == "n[0-1]"
    run = Run(lab, directory / "run.yaml")
    run.job = read_jobs(run.directory / "job")[-1]["job_id"]
    return run


@pytest.fixture
def verl_hpc(lab, tmp_path):
    """The command line, with this lab's Slurm and a list of excluded nodes of its own."""

    def call(*words):
        command = [sys.executable, "-m", "verl_hpc", *map(str, words)]
        environ = os.environ | lab.environment | {"XDG_CONFIG_HOME": str(tmp_path / "settings")}
        given = {"cwd": tmp_path, "env": environ, "timeout": 240}
        return subprocess.run(command, capture_output=True, text=True, **given)

    return call


def pytest_collection_modifyitems(items):
    """The longest first: workers that share the tests end at about the same time."""
    items.sort(key=lambda item: "test_random_faults" not in item.nodeid)
