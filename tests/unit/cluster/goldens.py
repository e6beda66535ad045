"""Texts that are kept in files: the scripts of launch/, and one per kind of job in tests/golden/.

`python -m tests.unit.cluster.goldens` writes them all again; `git diff` shows what has changed.
"""

from __future__ import annotations

import contextlib
import io
import shlex
import sys
from pathlib import Path

from tests.unit.cluster.requests import ROOT
from verl_hpc.cli.main import main
from verl_hpc.cluster.explain import explain
from verl_hpc.cluster.job import plan_job
from verl_hpc.cluster.profile import load_profile
from verl_hpc.cluster.request import Request
from verl_hpc.cluster.script import render_script
from verl_hpc.config.load import load_config

LAUNCH = ROOT / "launch"
SCRIPTS = [p for p in sorted(LAUNCH.glob("*.sbatch")) if p.stem != "reproduce"]
"""Scripts that `submit` has made; the other one starts no run by itself."""
GOLDEN = ROOT / "tests/golden"
COMMAND = "python -m verl_hpc.submit"
HERE = Path("/home/me/verl_hpc")

EVERYTHING = {
    "container": {"kind": "bwrap", "image": "/", "mounts": ["/data:/data:ro"]},
    "environment": {"NCCL_DEBUG": "INFO"},
    "pass_environment": ["WANDB_API_KEY"],
    "setup": ["ulimit -c 0"],
    "extra_directives": ["--mail-type=END"],
    "srun_args": ["--cpu-bind=cores"],
    "drop_directives": ["exclusive"],
}
SITES = {
    "bare_generic": ("generic", {}),
    "bare_slingshot": ("slingshot", {}),
    "bare_chain": ("generic", {"restarts.by": "chain", "restarts.most": 2}),
    "bwrap_lab": ("lab", EVERYTHING),
    "pyxis": ("h100_infiniband_pyxis", {"container.mounts": ["/scratch"]}),
    "apptainer": ("apptainer", {"code": "installed"}),
    "gh200": ("gh200_infiniband_apptainer", {}),
    "podman": ("mi300x_podman", {"container.mounts": ["/scratch:/data:ro"]}),
    "docker": ("generic", {"mpi": "none", "container": {"kind": "docker", "image": "verl_hpc:1"}}),
}
SYSTEMS = {
    f"systems/{path.stem}": (f"systems/{path.stem}", {"account": "ACCOUNT"})
    for path in sorted((ROOT / "slurm/systems").glob("*.yaml"))
}


def request(name: str) -> Request:
    site, overrides = (SITES | SYSTEMS)[name]
    words = ("directory=/scratch/me", "seed=3")
    return Request(
        config=load_config(ROOT / "configs/run/grpo_8b.yaml", words),
        config_path="configs/run/grpo_8b.yaml",
        overrides=words,
        profile=load_profile(ROOT / f"slurm/{site}.yaml", overrides.items()),
        nodes=2,
        time="1-00:00:00",
        directory=HERE,
    )


def golden(file: str) -> str:
    """What a file of tests/golden/ must hold: NAME.sbatch, or NAME.txt for its dry run."""
    name, _, ending = file.rpartition(".")
    job = plan_job(request(name))
    return render_script(job) if ending == "sbatch" else explain(job, ())


GOLDENS = [*(f"{name}.sbatch" for name in SITES | SYSTEMS), "pyxis.txt", "bwrap_lab.txt"]


def launch_command(script: str) -> list[str]:
    """Words after `python -m verl_hpc.submit` in a script's header."""
    lines = script.split("# Made by:\n")[1].splitlines()
    wanted = [line.removeprefix("#   ") for line in lines if line.startswith("#   ")]
    words = shlex.split(" ".join(line.strip().removesuffix("\\") for line in wanted))
    assert words[:3] == shlex.split(COMMAND)
    return words[3:]


def launch(path: Path) -> str:
    """What a script of launch/ must hold: the output of the command that it names."""
    output = io.StringIO()
    with contextlib.chdir(ROOT), contextlib.redirect_stdout(output):
        status = main(["submit", *launch_command(path.read_text())])
    assert status == 0
    return output.getvalue()


def write_all() -> None:
    for path in SCRIPTS:
        path.write_text(launch(path))
    (GOLDEN / "systems").mkdir(parents=True, exist_ok=True)
    for file in GOLDENS:
        (GOLDEN / file).write_text(golden(file))


if __name__ == "__main__":
    write_all()
    sys.exit(0)
