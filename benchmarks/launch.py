"""Starting a measured program as its users do, and waiting for it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent

GRACE_S = 60.0
"""How long what is asked to end may take."""
STARTED = "BENCHMARK_STARTED"
"""Variable in which a measured program finds the Unix time at which it was started."""


def mpiexec(num_ranks: int) -> list[str]:
    """The start of a command line on `num_ranks` ranks of this environment's MPI."""
    beside = Path(sys.executable).with_name("mpiexec")
    launcher = str(beside) if beside.exists() else "mpiexec"
    return [launcher, "-n", str(num_ranks), sys.executable]


def run(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> float:
    """Run a command to its end; its output goes to `log`.

    Returns:
        Unix time at which it was started.

    Raises:
        SystemExit: it failed or took too long; the message ends with its last lines.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    started = time.time()
    with log.open("wb") as output:
        program = subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, STARTED: repr(started), **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: object = f"no status after {timeout_s:.0f} s"
        try:
            status = program.wait(timeout_s)
        except subprocess.TimeoutExpired:
            pass
        finally:
            _end(program)
    if status != 0:
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-25:])
        raise SystemExit(f"{' '.join(command)}\nended with {status}:\n{tail}")
    return started


def _end(program: subprocess.Popen[bytes]) -> None:
    """End it and what it started.

    A launcher that is asked to end takes its ranks with it, which may first save what they have;
    one that is killed may not.
    """
    if program.poll() is not None:
        return
    deadline = time.monotonic() + GRACE_S
    with suppress(ProcessLookupError):  # none of its group is left
        os.killpg(program.pid, signal.SIGTERM)
        while time.monotonic() < deadline:
            program.poll()
            os.killpg(program.pid, 0)
            time.sleep(0.1)
        os.killpg(program.pid, signal.SIGKILL)


def shown(words: Sequence[str]) -> list[str]:
    """A command line that others can repeat: no directories of this machine, no output files."""
    found: list[str] = []
    remaining = iter(words)
    for word in remaining:
        if word in ("--keep", "--json", "--markdown"):
            next(remaining, None)
        elif word.endswith("-python"):
            next(remaining, None)
            found += [word, "VENV/bin/python"]
        else:
            found.append(Path(word).name if word.startswith("/") else word)
    return found
