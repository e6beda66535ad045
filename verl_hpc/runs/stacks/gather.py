"""Gather the stacks of all ranks of a run, wherever they are."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from verl_hpc.package import FOLDER
from verl_hpc.runs.jobs import cluster_of
from verl_hpc.runs.ranks import Progress, Ranks
from verl_hpc.runs.records import parse_record
from verl_hpc.runs.stacks.stack import DIRECTORY, NodeStacks, Stack
from verl_hpc.runs.stacks.take import AUTO, take_here
from verl_hpc.slurm.programs import WHICH_SLURM

_STEP_S = 120.0
_FILES_S = 5.0
"""Seconds to wait for files of other nodes on a network file system."""


def gather_stacks(run: Path, ranks: Ranks, how: str = AUTO) -> list[Stack]:
    """Return one stack per rank, in rank order; one that could not be taken says why.

    Ranks on this machine are read directly, those of a job on other nodes by one short job step in
    parallel to the one that hangs.

    Args:
        run: run directory.
        ranks: content of ranks.json.
        how: method, see `take_here`.
    """
    here = socket.gethostname()
    elsewhere = sorted({rank.host for rank in ranks.ranks} - {here})
    stacks = take_here(run, ranks.ranks, how)
    problem = f"on another machine than {here}, and not in a job of Slurm"
    if elsewhere and ranks.job_id is not None:
        taken, problem = _by_step(run, ranks.job_id, elsewhere, how)
        stacks += taken
    by_rank = {stack.rank: stack for stack in stacks}
    return [by_rank.get(p.rank, _absent(p, problem)) for p in ranks.ranks]


def _absent(rank: Progress, problem: str) -> Stack:
    return Stack(rank.rank, rank.host, rank.pid, problem=f"not reached: {problem}")


def _by_step(run: Path, job_id: str, hosts: Sequence[str], how: str) -> tuple[list[Stack], str]:
    """Return the stacks of the nodes that answered, and why others did not."""
    home = run / DIRECTORY
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodes-", dir=home) as directory:
        out = Path(directory).resolve()
        words = step_words(run.resolve(), out, job_id, hosts, how)
        problem = _run_step(words, cluster_of(run / "job", job_id))
        files = _files(out, len(hosts) if not problem else 0)
        taken = [parse_record(file.read_bytes(), NodeStacks) for file in files]
    return [stack for node in taken for stack in node.stacks], problem or "its node wrote nothing"


def step_words(run: Path, out: Path, job_id: str, hosts: Sequence[str], how: str) -> list[str]:
    """Return the command that runs `stacks.take` on each of these nodes of a job."""
    nodes = str(len(hosts))
    return [
        "srun",
        "--overlap",  # the ranks have all there is
        f"--jobid={job_id}",
        f"--nodes={nodes}",
        f"--ntasks={nodes}",
        "--ntasks-per-node=1",
        f"--nodelist={','.join(hosts)}",
        "--cpus-per-task=1",
        "--mem=0",
        "--gres=none",
        "--mpi=none",
        "--kill-on-bad-exit=0",
        sys.executable,
        "-m",
        "verl_hpc.runs.stacks.take",
        str(run),
        str(out),
        how,
    ]


def _run_step(words: Sequence[str], cluster: str | None) -> str:
    """Run a job step, and return what went wrong, or an empty text."""
    # Inside a job, its variables would be taken for options.
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "PMI"))}
    clean |= {k: os.environ[k] for k in WHICH_SLURM if k in os.environ}
    clean |= {} if cluster is None else {"SLURM_CLUSTERS": cluster}
    package = str(FOLDER.parent)
    clean["PYTHONPATH"] = ":".join(filter(None, [package, os.environ.get("PYTHONPATH")]))
    try:
        done = subprocess.run(
            words, env=clean, capture_output=True, text=True, check=False, timeout=_STEP_S
        )
    except OSError:
        return "srun is not on PATH: call this where Slurm's commands are"
    except subprocess.TimeoutExpired:
        return f"srun did not end within {_STEP_S:.0f} s"
    lines = done.stderr.strip().splitlines() or [f"srun: exit status {done.returncode}"]
    return lines[0] if done.returncode else ""


def _files(out: Path, expected: int) -> list[Path]:
    deadline = time.monotonic() + _FILES_S
    while True:
        files = sorted(out.glob("*.json"))
        if len(files) >= expected or time.monotonic() > deadline:
            return files
        time.sleep(0.2)
