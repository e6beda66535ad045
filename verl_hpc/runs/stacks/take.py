"""Take the stacks of all ranks of a run, wherever they are.

`hang` runs this on each node of a job, as `python -m verl_hpc.runs.stacks.take RUN OUT`. A rank is
sent a signal, at which it writes its stacks itself, whatever it is in.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from verl_hpc.package import FOLDER
from verl_hpc.runs.jobs import cluster_of
from verl_hpc.runs.process import stat_fields
from verl_hpc.runs.ranks import Progress, Ranks, read_ranks
from verl_hpc.runs.records import parse_record, write_record
from verl_hpc.runs.stacks.stack import (
    DIRECTORY,
    SIGNAL,
    STOPPED,
    NodeStacks,
    Stack,
    Thread,
    from_faulthandler,
    stack_file,
)
from verl_hpc.slurm.programs import WHICH_SLURM

_SIGNAL_S = 10.0
_QUIET_S = 0.2
"""Seconds without growth after which a file is whole."""
_AT_ONCE = 4
_STEP_S = 120.0
_FILES_S = 5.0
"""Seconds to wait for files of other nodes on a network file system."""


def gather_stacks(run: Path, ranks: Ranks) -> list[Stack]:
    """Return one stack per rank, in rank order; one that could not be taken says why.

    Ranks on this machine are read directly, those of a job on other nodes by one short job step in
    parallel to the one that hangs.

    Args:
        run: run directory.
        ranks: content of ranks.json.
    """
    here = socket.gethostname()
    elsewhere = sorted({rank.host for rank in ranks.ranks} - {here})
    stacks = take_here(run, ranks.ranks)
    problem = f"on another machine than {here}, and not in a job of Slurm"
    if elsewhere and ranks.job_id is not None:
        taken, problem = _by_step(run, ranks.job_id, elsewhere)
        stacks += taken
    by_rank = {stack.rank: stack for stack in stacks}
    return [by_rank.get(p.rank) or _failed(p, f"not reached: {problem}") for p in ranks.ranks]


def _by_step(run: Path, job_id: str, hosts: Sequence[str]) -> tuple[list[Stack], str]:
    """Return the stacks of the nodes that answered, and why others did not."""
    home = run / DIRECTORY
    home.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="nodes-", dir=home) as directory:
        out = Path(directory).resolve()
        words = step_words(run.resolve(), out, job_id, hosts)
        problem = _run_step(words, cluster_of(run / "job", job_id))
        files = _files(out, len(hosts) if not problem else 0)
        taken = [parse_record(file.read_bytes(), NodeStacks) for file in files]
    return [stack for node in taken for stack in node.stacks], problem or "its node wrote nothing"


def step_words(run: Path, out: Path, job_id: str, hosts: Sequence[str]) -> list[str]:
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


def take_here(run: Path, ranks: Sequence[Progress]) -> list[Stack]:
    """Return the stacks of the ranks whose processes are on this node; others are left out.

    Args:
        run: run directory.
        ranks: all ranks, as ranks.json has them.
    """
    host = socket.gethostname()
    ours = [rank for rank in ranks if rank.host == host]
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(lambda rank: _take(run, rank), ours))


def _take(run: Path, rank: Progress) -> Stack:
    state = process_state(rank.pid)
    if state is None:
        return _failed(rank, f"no process {rank.pid} on {rank.host}: the rank is gone")
    problem = "" if state in "RS" else _STATES.get(state, f"the process is in state {state}")
    try:
        return Stack(rank.rank, rank.host, rank.pid, _written(run, rank), problem)
    except (OSError, ValueError) as error:
        return _failed(rank, "; ".join(filter(None, (problem, str(error)))))


_STATES = {
    "D": "the process waits for the kernel, for a file system perhaps (state D)",
    "T": STOPPED,
    "t": "a debugger has stopped the process (state t)",
    "Z": "the process has ended (state Z)",
}


def process_state(pid: int) -> str | None:
    """Return the kernel's state letter for a process of this node, such as S; None without the
    process."""
    try:
        return stat_fields(pid)[0]
    except OSError:
        return None


def _written(run: Path, rank: Progress) -> tuple[Thread, ...]:
    """Send a rank the signal, and return the stacks that it writes.

    Raises:
        OSError, ValueError: it does not write them.
    """
    file = stack_file(run, rank.rank)
    if not file.exists():
        raise ValueError(f"the rank has not opened {file} yet")
    start = file.stat().st_size
    os.kill(rank.pid, SIGNAL)
    deadline = time.monotonic() + _SIGNAL_S
    size, since = start, time.monotonic()
    while size == start or time.monotonic() - since < _QUIET_S:
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
        if file.stat().st_size != size:
            size, since = file.stat().st_size, time.monotonic()
    if size == start:
        raise ValueError(f"no answer to {SIGNAL.name} within {_SIGNAL_S:.0f} s")
    with file.open("rb") as stream:
        stream.seek(start)
        return from_faulthandler(stream.read().decode(errors="replace"))


def _failed(rank: Progress, problem: str) -> Stack:
    return Stack(rank.rank, rank.host, rank.pid, problem=problem)


def main(run: str, out: str) -> int:
    """Write this node's stacks to a file in `out`, all at once."""
    ranks = read_ranks(Path(run))
    if ranks is None:
        print(f"{run} has no ranks.json", file=sys.stderr)
        return 1
    target = Path(out) / f"{socket.gethostname()}.json"
    write_record(target, NodeStacks(tuple(take_here(Path(run), ranks.ranks))))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
