"""A job is the same wherever it is submitted, whatever variables and limits are there."""

import os
import shlex
import subprocess
import sys

import pytest

from tests.slurm.runs import PATIENCE_S, ROOT, job_of, write_run
from verl_hpc.testing.slurm_lab import Lab, LabSettings
from verl_hpc.testing.slurm_lab.processes import wait_for

SHOW = """
import os, resource, sys
from pathlib import Path

def compute_score(**_):
    directory = Path(__file__).parent
    limits = [resource.getrlimit(getattr(resource, f"RLIMIT_{n}"))[0] for n in ("NOFILE", "AS")]
    variables = "\\n".join(f"{name}={value}" for name, value in os.environ.items())
    (directory / f"rank{os.environ['SLURM_PROCID']}").write_text(f"{limits}\\n{variables}\\n")
    return 1.0
"""


@pytest.fixture
def show(run):
    """The run, whose ranks write down what they have been given."""
    (run.config.parent / "reward.py").write_text(SHOW)
    return run


def seen(run):
    limits, *variables = (run.config.parent / "rank0").read_text().splitlines()
    return limits, dict(line.partition("=")[::2] for line in variables)


def command(run, *words):
    site = [f"site.python={sys.executable}", "site.tasks_per_node=1"]
    given = ["--config", str(run.config), "--cluster", str(ROOT / "slurm/lab.yaml")]
    given += ["--nodes", "1", "--time", "10", *site, "steps=1", *words]
    return [sys.executable, "-m", "verl_hpc.submit", *given]


def submit(run, lab, command, **variables):
    environ, place = os.environ | lab.environment | variables, run.config.parent
    return subprocess.run(command, env=environ, cwd=place, capture_output=True, text=True)


def follow(run, done):
    run.job = job_of(done)
    run.finish()
    return seen(run)


def test_from_within_an_allocation_by_a_login_nodes_limits(lab, show):
    """salloc leaves SLURM_MEM_PER_NODE and the like, srun --pty a binding to one core."""
    inner = "umask 077; ulimit -Sn 128; ulimit -v 8000000; " + shlex.join(
        command(show, "site.partition=debug", 'site.umask="027"')
    )
    words = ["salloc", "--nodes=1", "--ntasks=1", "--mem=500", "--quiet", "bash", "-c", inner]
    odd = {
        "SLURM_CPU_BIND": "quiet,mask_cpu:0x1",
        "SLURM_TRES_PER_TASK": "cpu:1",
        "SBATCH_PARTITION": "urgent",
        "SBATCH_EXPORT": "NONE",
        "SQUEUE_STATES": "PENDING",
        "RANK": "5",
        "TMPDIR": "/proc/nowhere",
        "LC_ALL": "de_XX.ISO-8859-1",
        "MPLBACKEND": "module://matplotlib_inline.backend_inline",
    }
    done = submit(show, lab, words, **odd)
    assert "SBATCH_EXPORT: this shell sets what sbatch would read" in done.stderr
    limits, variables = follow(show, done)
    assert show.details["Partition"] == "debug"
    nofile, address_space = limits.strip("[]").split(", ")
    assert (int(nofile) > 128, address_space) == (True, "-1")
    assert variables["RANK"] == "0", "as the rank itself has announced it"
    assert variables["TMPDIR"] == "/tmp"
    assert "MPLBACKEND" not in variables
    written = [show.directory, *show.directory.rglob("*")]
    assert show.directory / f"job/slurm-{show.job}.log" in written
    for path in (path for path in written if not path.is_symlink()):
        allowed = 0o750 if path.is_dir() else 0o640
        assert path.stat().st_mode & 0o777 == allowed, "a group reads all that its run writes"


def test_a_site_that_starts_jobs_without_the_submitters_variables(lab, show):
    words = ["site.extra_directives=[--export=NONE]", "site.environment.OWN=ours"]
    words.append("site.pass_environment=[MY_KEY]")
    done = submit(show, lab, command(show, *words), MY_KEY="k3y", OTHER="x")
    _, variables = follow(show, done)
    assert variables["OWN"] == "ours"
    assert variables["PYTHONPATH"].startswith(f"{show.directory}/job/code")
    assert variables["MY_KEY"] == "k3y"
    assert "OTHER" not in variables


PROMISE = "VERL_HPC_GPUS_PER_NODE=2"


def test_gpus_that_are_promised_and_not_used_end_the_run(slurm, submitter, model, tmp_path, place):
    """The lab's GPUs are files, and its torch is built without CUDA."""
    config = write_run(tmp_path, model)
    site = "{name: gpus, gpus_per_node: 2, cores_per_node: 4, memory: null, exclusive: false}"
    (tmp_path / "site.yaml").write_text(site)
    words = ["--config", config, "--cluster", tmp_path / "site.yaml", "--nodes", "1"]
    words += ["--time", "10", f"site.python={sys.executable}", "steps=1", "site.gpu_request=gres"]
    with Lab(LabSettings(directory=place, nodes=1, gpus=2, **submitter)) as lab:
        command = [sys.executable, "-m", "verl_hpc.submit", *map(str, words)]
        environ = os.environ | lab.environment
        job = job_of(
            subprocess.run(command, env=environ, cwd=tmp_path, capture_output=True, text=True)
        )
        gone = lambda: job not in lab.run("squeue", "--noheader", "--format=%A").split()  # noqa: E731
        assert wait_for(gone, PATIENCE_S, 0.5)
    logs = (tmp_path / "run/job/attempts/latest").glob("*.log")
    said = "".join(log.read_text() for log in logs)
    assert f"(ranks 0, 1): {PROMISE} promises GPUs, but torch 2." in said
    assert "is built without CUDA and ROCm" in said
    assert "Traceback" not in said
