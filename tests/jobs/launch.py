"""Starting whole jobs with mpiexec, as a user would, and killing them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import h5py
import numpy as np
import psutil
import yaml

from tests.jobs.forks import ForkedJob

Job: TypeAlias = subprocess.Popen | ForkedJob
MPIEXEC = Path(sys.executable).with_name("mpiexec")


def start(num_ranks: int, arguments: Sequence[str | Path], **environment: str) -> subprocess.Popen:
    """A job; its output is collected by `finish`."""
    command = [MPIEXEC, "-n", str(num_ranks), sys.executable, *arguments]
    return subprocess.Popen(
        [str(word) for word in command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"PYTHONHASHSEED": "0"} | environment,
    )


def finish(job: Job, timeout: float = 480) -> tuple[int, str]:
    """Exit status and output; a job that does not end in time is a failure."""
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.kill()
        output, _ = job.communicate()
        raise AssertionError(f"the job hangs; its output so far:\n{output}") from None
    return job.returncode, output


def succeeds(job: Job, timeout: float = 480) -> str:
    """The output of a job that ends with status 0."""
    status, output = finish(job, timeout)
    assert status == 0, output
    return output


def start_training(
    num_ranks: int,
    config: Path,
    *overrides: str,
    before: Callable[[], None] | None = None,
    **environment: str,
) -> ForkedJob:
    """`python -m verl_hpc train --ranks N --config ...`, after `before` if it is given."""
    words = ["train", "--ranks", str(num_ranks), "--config", str(config), *overrides]
    return ForkedJob(words, os.environ | {"PYTHONHASHSEED": "0"} | environment, before)


def train(num_ranks: int, config: Path, *overrides: str, timeout: float = 480) -> tuple[int, str]:
    """Exit status and output of a training job."""
    return finish(start_training(num_ranks, config, *overrides), timeout)


def trained(num_ranks: int, config: Path, *overrides: str, timeout: float = 480) -> str:
    """The output of a training job that ends with status 0."""
    return succeeds(start_training(num_ranks, config, *overrides), timeout)


def verl_hpc(*words: object, timeout: float = 240, **options: Any) -> subprocess.CompletedProcess:
    """`python -m verl_hpc WORDS` to its end, whatever its status."""
    command = [sys.executable, "-m", "verl_hpc", *map(str, words)]
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, **options)


def write_problems(directory: Path) -> dict:
    """Fifty sums in a file, as a setting of `data`.

    reasoning-gym makes such problems, too, but every rank of every start would import it.
    """
    rows = [
        {
            "prompt": f"State the final answer to the following arithmetic problem: {number} + 7 =",
            "data_source": "sums",
            "reward_model": {"ground_truth": str(number + 7)},
        }
        for number in range(50)
    ]
    file = directory / "problems.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {"kind": "files", "paths": [str(file)]}


def write_config(path: Path, tree: dict) -> Path:
    path.write_text(yaml.safe_dump(tree))
    return path


def ranks_of(job: Job) -> list[int]:
    """Process ids of the ranks that have Python running, in the order of the ranks.

    What mpiexec starts is a rank, or the parent that watches it, or it stands in for a fork of
    `job`, which writes into the same pipe. A rank's parent and its helpers are no ranks.
    """
    ranks = {}
    with contextlib.suppress(psutil.NoSuchProcess):
        forks = {output_of(fork): fork for fork in psutil.Process(job.pid).children()}
        for process in psutil.Process(job.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                if process.parent().name() == "hydra_pmi_proxy" and "python" in process.name():
                    number = int(process.environ()["PMI_RANK"])
                    ranks[number] = watched_by(forks.get(output_of(process), process))
    return [ranks[number] for number in sorted(ranks)]


def output_of(process: psutil.Process) -> str:
    """What its standard output is, as Linux names it."""
    try:
        return str(Path(f"/proc/{process.pid}/fd/1").readlink())
    except OSError:
        raise psutil.NoSuchProcess(process.pid) from None


def watched_by(process: psutil.Process) -> int:
    """The process that is the rank: a child with the same command line, or the process itself."""
    words = process.cmdline()
    children = (child for child in process.children() if child.cmdline() == words)
    return next(children, process).pid


def ancestors(process: int) -> list[int]:
    """Its parent first; none of a process that is gone."""
    try:
        return [parent.pid for parent in psutil.Process(process).parents()]
    except psutil.NoSuchProcess:
        return []


def wait_until(condition: Callable[[], bool], job: Job, timeout: float = 480) -> bool:
    """True once the condition holds; False if the job has ended and it does not."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        over = job.poll() is not None
        if condition():
            return True
        if over:
            return False
        time.sleep(0.05)
    raise AssertionError("timed out")


def kill_rank(job: Job, index: int) -> bool:
    """SIGKILL to one rank; False if none is left."""
    ranks = ranks_of(job)
    if ranks:
        os.kill(ranks[index % len(ranks)], signal.SIGKILL)
    return bool(ranks)


def tensors_of(step: Path) -> dict[str, np.ndarray]:
    """Every tensor of a step: weights, master weights, moments."""
    found: dict[str, np.ndarray] = {}

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset) and not name.startswith("regions/"):
            found[name] = item[...]

    with h5py.File(step / "index.h5", "r") as file:
        file.visititems(visit)
    return found


def differing(a: Path, b: Path) -> list[str]:
    """Names of tensors that are not the same bits in two steps."""
    left, right = tensors_of(a), tensors_of(b)
    assert left.keys() == right.keys() and left
    return [n for n in left if left[n].tobytes() != right[n].tobytes()]
