"""heartbeat.json: the current state of a run, for readers on a login node.

Rank 0 writes it at each operator. A file that is replaced whole needs no port, no daemon and no
rights beyond those of the run directory.
"""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from verl_hpc.runs.contract import ATTEMPT
from verl_hpc.runs.ranks import Placed
from verl_hpc.runs.records import RecordFile, read_record

FILE = "heartbeat.json"
FAILED = "failed"
"""Outcome of a run that ended with an exception."""

_EVERY_S = 1.0
_CHANGE_EVERY_S = 0.5


@dataclass(frozen=True)
class Beat:
    """One heartbeat; times are seconds since the epoch by the writer's clock."""

    time: float
    step: int
    """The step under way; after the end, the last one done."""
    total_steps: int | None
    operator: str
    host: str
    """Node of rank 0."""
    nodes: str
    """All nodes of the job, as Slurm writes them; the host without a job."""
    pid: int
    job_id: str | None
    """Slurm's job id; None for a run that mpiexec started."""
    attempt: int | None
    """Number of this start's directory below job/attempts."""
    restarts: int
    """Number of times that Slurm has restarted this job."""
    started: float
    outcome: str | None = None
    """Outcome of the run; None while it is under way."""
    placements: tuple[Placed, ...] = ()
    """Placements of a run whose roles are on different ranks; else empty."""


class Heartbeat(AbstractContextManager["Heartbeat"]):
    """Writes heartbeat.json. Belongs to rank 0.

    A file system of many users sees at most two writes a second. Writes that come too soon are
    delayed, and a thread writes the last of them, so that the file does not keep naming a short
    operator while a long one runs. A failing write is reported once and never ends a run.

    A context manager that writes FAILED if an exception passes through.

    Args:
        run_directory: an existing directory.
        clock: seconds since the epoch.
        total_steps: step at which the run is done, if known.
    """

    def __init__(
        self,
        run_directory: Path,
        clock: Callable[[], float] = time.time,
        *,
        total_steps: int | None = None,
    ) -> None:
        self._file = RecordFile(run_directory / FILE, "no heartbeat")
        self._clock = clock
        self._lock = threading.Lock()
        self._timer: threading.Timer | None = None
        self._written = float("-inf")
        now, host = clock(), socket.gethostname()
        nodes = os.environ.get("SLURM_JOB_NODELIST") or host
        self._beat = Beat(
            now, 0, total_steps, "", host, nodes, os.getpid(), **slurm_job(), started=now
        )

    def beat(self, operator: str, step: int) -> None:
        """Note that `operator` of `step` begins or continues; cheap, and does nothing after `end`.

        Args:
            operator: name as in the watchdog and the timers.
            step: the step under way, from 1; 0 before the first.
        """
        with self._lock:
            if self._beat.outcome is not None:
                return
            now = self._clock()
            changed = operator != self._beat.operator
            self._beat = replace(self._beat, time=now, step=step, operator=operator)
            wait = (_CHANGE_EVERY_S if changed else _EVERY_S) - (now - self._written)
            if wait <= 0 or wait > _EVERY_S:  # the clock was set back
                self._write(now)
            elif changed and self._timer is None:
                self._timer = threading.Timer(wait, self._write_late)
                self._timer.daemon = True
                self._timer.start()

    def expect(self, total_steps: int) -> None:
        """Set the step at which the run is done, from the next heartbeat on."""
        with self._lock:
            self._beat = replace(self._beat, total_steps=total_steps)

    def place(self, placements: Sequence[Placed]) -> None:
        """Set which ranks have which roles, from the next heartbeat on."""
        with self._lock:
            self._beat = replace(self._beat, placements=tuple(placements))

    def end(self, outcome: str) -> None:
        """Write the last heartbeat, at once.

        Args:
            outcome: "finished", "goal reached", "stopped", "restart" or FAILED.
        """
        with self._lock:
            if self._timer is not None:
                self._timer.cancel()
            now = self._clock()
            self._beat = replace(self._beat, time=now, outcome=outcome)
            self._write(now)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        if error is not None and self._beat.outcome is None:
            self.end(FAILED)

    def _write_late(self) -> None:
        with self._lock:
            self._timer = None
            if self._beat.outcome is None:
                self._write(self._clock())

    def _write(self, now: float) -> None:
        self._written = now
        self._file.write(self._beat)


def read_heartbeat(run_directory: Path) -> Beat | None:
    """Return the last heartbeat of a run; None if it is missing or unreadable."""
    return read_record(run_directory / FILE, Beat)


def _job_id() -> str | None:
    """Return the job's id as squeue and sacct print it: a run of a sweep is 4711_3."""
    array, index = (os.environ.get(f"SLURM_ARRAY_{name}_ID") for name in ("JOB", "TASK"))
    return f"{array}_{index}" if array and index else os.environ.get("SLURM_JOB_ID")


def slurm_job() -> dict[str, Any]:
    """Return what the batch script's environment says about this start."""
    restarts = os.environ.get("SLURM_RESTART_COUNT", "")
    attempt = Path(os.environ.get(ATTEMPT, "")).name
    return {
        "job_id": _job_id(),
        "restarts": int(restarts) if restarts.isdecimal() else 0,
        "attempt": int(attempt) if attempt.isdecimal() else None,
    }
