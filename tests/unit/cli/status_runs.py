"""Run directories as the real writers leave them."""

import os
import subprocess
import sys
import time
from pathlib import Path

from tests.unit.cluster.requests import profile, request, run_config
from tests.unit.programs import program
from verl_hpc.cluster.run_directory import write_job
from verl_hpc.config.load import dump_config
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.runs.heartbeat import Heartbeat
from verl_hpc.runs.jobs import record_job

NOW = 1_800_000_000.0
HEAVY = {"torch", "numpy", "mpi4py", "h5py", "matplotlib", "vllm", "megatron", "transformers"}
HEAVY |= {"submitit"}
STEP = {
    "critic/score/mean": 0.25, "actor/kl_loss": 0.01, "perf/total_num_tokens": 2000.0,
    "timing_s/rollout": 6.0, "timing_s/update_actor": 3.0, "timing_s/step": 10.0,
}  # fmt: skip


def make_run(directory: Path, name: str = "run", **fields) -> Path:
    """A run that has started: its resolved config.yaml in directory/name."""
    run = directory / name
    run.mkdir(parents=True, exist_ok=True)
    (run / "config.yaml").write_text(dump_config(run_config(directory, name=run.name, **fields)))
    (directory / "run.yaml").unlink()
    return run


def submit_run(directory: Path, *job_ids: str, **restarts) -> Path:
    """A run that was submitted: its job/, and a record of its jobs."""
    directory.mkdir(exist_ok=True)
    site = profile(directory, restarts=restarts) if restarts else None
    job = write_job(request(directory, site=site), "", "")
    for job_id in job_ids:
        record_job(job, {"job_id": job_id, "submitted": "2027-01-15T07:00:00+00:00"})
    return job.parent


def work(run: Path, steps: int, first: int = 1, **values) -> None:
    """Metrics of that many steps; a value may be a function of the step."""
    with MetricsLog(run, resumed_from=first - 1) as log:
        for step in range(first, first + steps):
            row = {k: v(step) if callable(v) else v for k, v in (STEP | values).items()}
            log.write(step, {name: value for name, value in row.items() if value is not None})


def beat(run: Path, operator="rollout", step=1, at=None, outcome=None, total_steps=3) -> None:
    """One heartbeat, written at a time of one's choice."""
    heart = Heartbeat(run, lambda: time.time() if at is None else at, total_steps=total_steps)
    heart.beat(operator, step)
    if outcome is not None:
        heart.end(outcome)


def fake_slurm(directory: Path, monkeypatch, **bodies: str) -> Path:
    """Programs of Slurm on PATH that write down how they are called; returns that file."""
    tools, log = directory / "bin", directory / "calls"
    for name in ("squeue", "sacct", "sacctmgr", "sreport", "scontrol"):
        body = bodies.get(name, "exit 1")
        program(tools / name, f'echo "{name} $*" >>{log}\n{body}')
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    return log


def without_slurm(directory: Path, monkeypatch) -> None:
    """Nothing of Slurm on PATH, whatever this machine has."""
    empty = directory / "empty"
    empty.mkdir(exist_ok=True)
    monkeypatch.setenv("PATH", str(empty))


def heavy_imports(words, directory: Path) -> str:
    """Heavy modules that a call of the program has imported, one after another."""
    code = f"""import sys
from verl_hpc.cli.main import main
main({[str(word) for word in words]!r})
print("heavy:", *sorted({HEAVY!r} & {{name.partition(".")[0] for name in sys.modules}}))"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=directory
    )
    assert "heavy:" in done.stdout, done.stderr
    return done.stdout.rpartition("heavy:")[2].strip()
