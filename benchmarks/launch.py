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
    started = time.time()
    status = status_of(command, log, timeout_s, environment)
    if status != 0:
        ended = f"no status after {timeout_s:.0f} s" if status is None else status
        raise SystemExit(f"{' '.join(command)}\nended with {ended}:\n{last_lines(log)}")
    return started


def last_lines(log: Path, most: int = 25) -> str:
    """The end of a log, where errors are."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-most:])


def status_of(
    command: Sequence[str],
    log: Path,
    timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> int | None:
    """Run a command; its output goes to `log`.

    Returns:
        Its exit status; None if it took too long, and was ended with all that it had started.
    """
    return status_after(begin(command, log, environment), timeout_s)


def begin(
    command: Sequence[str], log: Path, environment: Mapping[str, str] | None = None
) -> subprocess.Popen[bytes]:
    """Start a command in a session of its own; its output goes to `log`."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    with log.open("wb") as output:
        return subprocess.Popen(
            command,
            cwd=REPOSITORY,
            env={**os.environ, STARTED: repr(time.time()), **(environment or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )


def status_after(program: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """Wait for what `begin` has started.

    Returns:
        Its exit status; None if it took too long, and was ended with all that it had started.
    """
    try:
        return program.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return None
    finally:
        end(program)


def end(program: subprocess.Popen[bytes]) -> None:
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
