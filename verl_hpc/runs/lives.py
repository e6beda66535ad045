"""lives/K.json: what the K-th start of a run took, so that hours add up without Slurm's accounts.

Rank 0 writes its own file every few seconds. A killed start leaves its last file, and the next
start records the steps that it has to redo.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

from verl_hpc.runs.contract import ATTEMPT
from verl_hpc.runs.heartbeat import FAILED, slurm_job
from verl_hpc.runs.records import RecordFile, read_record

DIRECTORY = "lives"
EVERY_S = 10.0
"""Seconds between writes: a killed start's file is at most this old."""

Unit = Literal["GPU", "rank"]


@dataclass(frozen=True)
class RunLife:
    """One start of a run; times are seconds since the epoch by the clock of rank 0."""

    began: float
    """Start of the job, or of rank 0 if no job script started the run."""
    seen: float
    """Last sign of life, or the end."""
    devices: int
    """Number of GPUs, including those of the job that no rank uses; without GPUs, of ranks."""
    unit: Unit
    job_id: str | None = None
    attempt: int | None = None
    restarts: int = 0
    ready: float | None = None
    """Time at which the first step could begin."""
    from_step: int = 0
    """The step that it resumed from."""
    redone_s: float = 0.0
    """Seconds of steps that this start redoes: earlier starts' that no checkpoint had, and its own
    that a guard took back."""
    step_began: float | None = None
    """Beginning of the step that is, or was at the end, under way."""
    outcome: str | None = None
    """Outcome of the start; None while it is under way, and if it was killed."""

    @property
    def hours(self) -> float:
        """GPU-hours; rank-hours without GPUs."""
        return self.devices * (self.seen - self.began) / 3600

    @property
    def unfinished_s(self) -> float:
        """Seconds of the step that was under way at the last sign of life."""
        return 0.0 if self.step_began is None else max(self.seen - self.step_began, 0.0)


class LifeRecord(AbstractContextManager["LifeRecord"]):
    """Writes the file of this start. Belongs to rank 0; a failing write never ends a run.

    Args:
        run_directory: an existing directory.
        ranks: number of ranks of the run.
        on_gpus: whether they have GPUs.
        clock: seconds since the epoch.
    """

    def __init__(
        self, run_directory: Path, ranks: int, on_gpus: bool, clock: Callable[[], float] = time.time
    ) -> None:
        self.earlier = read_lives(run_directory)
        self._clock = clock
        self._lock = threading.Lock()
        self._written = float("-inf")
        directory = run_directory / DIRECTORY
        directory.mkdir(exist_ok=True)
        numbers = [int(path.stem) for path in directory.glob("*.json") if path.stem.isdecimal()]
        path = directory / f"{max(numbers, default=-1) + 1}.json"
        self._file = RecordFile(path, "the hours of this start are not recorded")
        gpus, now = _gpus_of_job(), clock()
        unit: Unit = "GPU" if gpus or on_gpus else "rank"
        self._life = RunLife(_job_start() or now, now, gpus or ranks, unit, **slurm_job())
        self._write()

    def ceiling(self, most_hours: float) -> float:
        """Return when the run will have used `most_hours` in all its starts; seconds since the
        epoch."""
        left = most_hours - sum(life.hours for life in self.earlier)
        return self._life.began + 3600 * left / self._life.devices

    @property
    def usual_start_s(self) -> float:
        """Seconds that the last start with a step took until its first one; 0 without such a
        start."""
        ready = [life.ready - life.began for life in self.earlier if life.ready is not None]
        return ready[-1] if ready else 0.0

    def tick(self, *_: object) -> None:
        """Rewrite the file if that is due; any thread may call this."""
        if self._clock() - self._written >= EVERY_S:
            self._change()

    def resume(self, step: int, redone_s: float) -> None:
        """Record that engines are ready and training continues from `step`."""
        self._change(ready=self._clock(), from_step=step, redone_s=redone_s)

    def go_back(self, redone_s: float) -> None:
        """Add seconds of this start's own steps, which it redoes."""
        self._change(redone_s=self._life.redone_s + redone_s)

    def begin_step(self) -> None:
        self._change(write=False, step_began=self._clock())

    def end_step(self) -> None:
        self._change(write=False, step_began=None)

    def end(self, outcome: str) -> None:
        """Write the outcome; later calls change nothing.

        A step that all ranks gave up to leave at once ends at `seen`, like a killed one.
        """
        self._change(outcome=outcome)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None:
            self.end(FAILED)

    def _change(self, write: bool = True, **changes: Any) -> None:
        with self._lock:
            if self._life.outcome is None:
                self._life = replace(self._life, seen=self._clock(), **changes)
                if write:
                    self._write()

    def _write(self) -> None:
        self._written = self._life.seen
        self._file.write(self._life)


def read_lives(run_directory: Path) -> list[RunLife]:
    """Return all starts of a run, oldest first, without unreadable ones."""
    files = [p for p in (run_directory / DIRECTORY).glob("*.json") if p.stem.isdecimal()]
    lives = (read_record(path, RunLife) for path in sorted(files, key=lambda path: int(path.stem)))
    known = (life for life in lives if life is not None)
    return [life for life in known if life.devices > 0 and life.seen >= life.began]


def lost_seconds(lives: Sequence[RunLife], unsaved_s: float | None) -> float:
    """Sum the seconds of steps that no checkpoint has: of killed or failed starts, and steps that
    ranks gave up to leave at once.

    Args:
        lives: all starts of a run.
        unsaved_s: seconds of whole steps after the newest checkpoint; None while the run is under
            way, when they may still be saved.
    """
    over = lives[:-1] if unsaved_s is None else lives
    lost = sum(life.redone_s for life in lives) + sum(life.unfinished_s for life in over)
    return lost + (unsaved_s or 0.0)


def _gpus_of_job() -> int:
    """Return the number of GPUs of the Slurm job; 0 outside one, or without GPUs."""
    each, nodes = (os.environ.get(f"SLURM_{n}", "") for n in ("GPUS_ON_NODE", "JOB_NUM_NODES"))
    return int(each) * int(nodes) if each.isdecimal() and nodes.isdecimal() else 0


def _job_start() -> float | None:
    """Return when the job of this start began; None if other work may have used the job."""
    if ATTEMPT not in os.environ:
        return None
    if (told := os.environ.get("SLURM_JOB_START_TIME", "")).isdecimal():
        return float(told)
    try:  # Slurm before 23.02 lacks it; the batch script makes this link first of all
        return (Path(os.environ[ATTEMPT]).parent / "latest").lstat().st_mtime
    except OSError:
        return None
