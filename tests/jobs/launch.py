"""Starting whole jobs with mpiexec, as a user would, and killing them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import yaml

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


def finish(job: subprocess.Popen, timeout: float = 480) -> tuple[int, str]:
    """Exit status and output; a job that does not end in time is a failure."""
    try:
        output, _ = job.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        job.kill()
        output, _ = job.communicate()
        raise AssertionError(f"the job hangs; its output so far:\n{output}") from None
    return job.returncode, output


def succeeds(job: subprocess.Popen, timeout: float = 480) -> str:
    """The output of a job that ends with status 0."""
    status, output = finish(job, timeout)
    assert status == 0, output
    return output


def start_training(
    num_ranks: int, config: Path, *overrides: str, **environment: str
) -> subprocess.Popen:
    """`mpiexec -n N python -m verl_hpc train --config ...`."""
    words = ["-m", "verl_hpc", "train", "--config", config, *overrides]
    return start(num_ranks, words, **environment)


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


def ranks_of(job: subprocess.Popen) -> list[int]:
    """Process ids of the ranks that have Python running, in the order of the ranks.

    A rank's parent, which has the same command line, is none of them, nor are its helpers.
    """
    known = {}
    for directory in Path("/proc").iterdir():
        try:
            status = (directory / "status").read_text()
            environ = (directory / "environ").read_bytes()
            command = (directory / "cmdline").read_bytes()
        except (OSError, ValueError):
            continue
        parents = ancestors(int(directory.name)) if directory.name.isdigit() else ()
        if job.pid in parents and b"PMI_RANK=" in environ and "python" in status.split("\n")[0]:
            number = int(environ.split(b"PMI_RANK=")[1].split(b"\0")[0])
            known[int(directory.name)] = (number, parents[0], command)
    top = {p: n for p, (n, parent, _) in known.items() if parent not in known}
    below = {p: n for p, (n, parent, c) in known.items() if parent in top and known[parent][2] == c}
    ranks = below or top
    return sorted(ranks, key=ranks.__getitem__)


def ancestors(process: int) -> list[int]:
    """Its parent first."""
    chain = []
    while process > 1:
        try:
            stat = Path(f"/proc/{process}/stat").read_text()
        except OSError:
            break
        process = int(stat.rsplit(")", 1)[1].split()[1])
        chain.append(process)
    return chain


def wait_until(condition: Callable[[], bool], job: subprocess.Popen, timeout: float = 480) -> bool:
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


def kill_rank(job: subprocess.Popen, index: int) -> bool:
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
