"""Find out the state of a run: from its own files first, from Slurm only if they leave a
question."""

from __future__ import annotations

import json
import os
import re
import socket
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from verl_hpc.config.regular_file import read_regular
from verl_hpc.errors import ConfigError
from verl_hpc.runs.heartbeat import FAILED, Beat, read_heartbeat
from verl_hpc.runs.jobs import read_jobs
from verl_hpc.runs.queue import ACTIVE, WAITING, Answer, QueuedJob
from verl_hpc.runs.reasons import explained

SAVING = "save_checkpoint"
"""The operator that writes a checkpoint."""
TESTING = "testing"
"""The operator that evaluates, also at step 0."""
SHORTEST_PATIENCE_S = 120.0
ASKED_AFTER_S = 30.0
"""Seconds of silence after which Slurm is asked whether it has suspended the job."""
START_PATIENCE_S = 900.0
"""Seconds of silence that are normal before the first step, while engines and kernels are built."""
MOST_JOBS = 16
"""Most jobs to ask about at once: the last ones of a run."""

_SUSPENDED = ("SUSPENDED", "STOPPED")
_ENDS = ("finished", "goal reached", "stopped")
_FACTS = (*_ENDS, "interrupted")


@dataclass(frozen=True)
class State:
    """State of a run in a word or two, with details."""

    name: str
    """running, saving, suspended, starting, queued, not started, finished, goal reached, stopped,
    interrupted, failed, no heartbeat, or unknown."""
    detail: str = ""
    queue: QueuedJob | None = None
    job_id: str | None = field(default=None, compare=False)
    """The job that `queue` is about."""

    @property
    def is_over(self) -> bool:
        """Whether nothing changes any more unless somebody submits again."""
        return self.name in (*_ENDS, FAILED, "interrupted")


@dataclass(frozen=True)
class RunStatus:
    """What a run's files say about it."""

    run: Path
    now: float
    beat: Beat | None
    patience_s: float
    """Seconds of silence that are still normal."""
    jobs: tuple[dict[str, Any], ...]
    recorded: State | None
    """State in facts.json of the last start that ended by itself; read only without a heartbeat."""
    recorded_at: float
    """Time at which facts.json was written."""

    @property
    def silent_s(self) -> float:
        """Seconds since the last heartbeat; 0 if the writer's clock is ahead."""
        return 0.0 if self.beat is None else max(self.now - self.beat.time, 0.0)

    @property
    def clock_ahead_s(self) -> float:
        """Seconds by which the writer's clock is ahead of ours; one that is behind is not
        noticed."""
        return 0.0 if self.beat is None else max(self.beat.time - self.now, 0.0)

    @property
    def is_gone(self) -> bool:
        """Whether the process ended without a record; known only on its own machine."""
        beat = self.beat
        if beat is None or beat.outcome is not None or beat.job_id is not None:
            return False
        return beat.host == socket.gethostname() and not _exists(beat.pid)

    @property
    def is_alive(self) -> bool:
        beat = self.beat
        if beat is None or beat.outcome is not None or self.is_gone:
            return False
        return self.silent_s <= self.patience_s

    @property
    def is_at_end(self) -> bool:
        """Whether the run has recorded that it is over."""
        if self.beat is not None:
            return self.beat.outcome in _ENDS
        return self.recorded is not None and self.recorded.name in _ENDS

    def asks(self) -> tuple[str, ...]:
        """Return the jobs to ask Slurm about; empty if the files say all."""
        if self.is_alive:
            job_id = self.beat.job_id if self.beat is not None else None
            return (job_id,) if job_id is not None and self.silent_s > ASKED_AFTER_S else ()
        job_id = None if self.beat is None or self.is_at_end else self.beat.job_id
        own = [] if job_id is None else [job_id]
        later = [job["job_id"] for job in self.jobs if self._is_later(job, job_id)]
        return tuple(dict.fromkeys(own + later[-MOST_JOBS:]))

    def _is_later(self, job: dict[str, Any], own: str | None) -> bool:
        """Whether a job was submitted after the run's last sign of life, or is a later link of a
        chain."""
        if self.beat is None and not self.is_at_end:
            return True
        said_at = self.recorded_at if self.beat is None else self.beat.time
        try:
            if datetime.fromisoformat(job["submitted"]).timestamp() > said_at:
                return True
        except (KeyError, ValueError):
            return False
        ids = [known["job_id"] for known in self.jobs]
        return own in ids and ids.index(job["job_id"]) > ids.index(own)


def look(run: Path, now: float, longest_operator_s: float | None = None) -> RunStatus:
    """Read a run's files.

    Args:
        now: seconds since the epoch.
        longest_operator_s: longest operator of the last steps, by which silence is judged. None if
            no step is done.
    """
    patience = START_PATIENCE_S
    if longest_operator_s is not None:
        patience = max(SHORTEST_PATIENCE_S, 3 * longest_operator_s)
    try:
        jobs = tuple(read_jobs(run / "job"))
    except ConfigError:  # in the middle of a line
        jobs = ()
    beat = read_heartbeat(run)
    recorded, recorded_at = (None, 0.0) if beat is not None else _recorded(run)
    return RunStatus(run, now, beat, patience, jobs, recorded, recorded_at)


def conclude(sight: RunStatus, answer: Answer) -> State:
    """Return the state, from files and from Slurm's answer about `sight.asks()`."""
    beat = sight.beat
    if beat is not None and sight.is_alive:
        job = answer.jobs.get(beat.job_id or "")
        if job is not None and job.state in _SUSPENDED:
            return State("suspended", f"in {beat.operator}; job {beat.job_id} is {job.state}", job)
        if beat.step == 0 and beat.operator != TESTING:
            return State("starting", f"{beat.operator} ({sight.silent_s:.0f} s)")
        return State("saving" if beat.operator == SAVING else "running", beat.operator)
    asked = {job: answer.jobs[job] for job in sight.asks() if job in answer.jobs}
    if (queued := _in_queue(beat, asked, sight.now)) is not None:
        return queued
    if beat is None:
        return _never_seen(sight, asked)
    if beat.outcome is not None:
        return _ended(beat)
    return _silent(sight, beat, asked.get(beat.job_id or ""))


def _in_queue(beat: Beat | None, jobs: dict[str, QueuedJob], now: float) -> State | None:
    for job_id, job in jobs.items():
        if job.state not in ACTIVE:
            continue
        if beat is None or job_id != beat.job_id or _started_after(job, beat):
            return State("starting", f"job {job_id} is {job.state}{_since(job, now)}", job, job_id)
        if beat.outcome == "restart":
            told = f"saved; job {job_id} is {job.state}, before Slurm starts it again or ends it"
            return State("queued", told, job, job_id)
        if beat.outcome is None:
            name = "suspended" if job.state in _SUSPENDED else "no heartbeat"
            return State(name, f"in {beat.operator}; job {job_id} is {job.state}", job, job_id)
    for job_id, job in jobs.items():
        if job.state in WAITING:
            return State("queued", f"job {job_id}", job, job_id)
    return None


def _since(job: QueuedJob, now: float) -> str:
    """Return how long ago Slurm started the job, in words; empty if that is unknown."""
    try:
        seconds = now - datetime.fromisoformat(job.start).timestamp()
    except ValueError:
        return ""
    return f" ({max(seconds, 0.0):.0f} s)"


def _started_after(job: QueuedJob, beat: Beat) -> bool:
    """Whether Slurm has started the job again since the heartbeat."""
    try:
        return datetime.fromisoformat(job.start).timestamp() > beat.time
    except ValueError:
        return False


def _never_seen(sight: RunStatus, jobs: dict[str, QueuedJob]) -> State:
    if sight.recorded is not None:
        return sight.recorded
    if jobs:
        job_id, job = list(jobs.items())[-1]
        why = explained(job.reason, job_id) if job.reason else explained(job.state, job_id)
        told = f"job {job_id} ended as {job.state} before the first heartbeat"
        return State(FAILED, f"{told}; Slurm says {why}" if why != job.state else told)
    if sight.jobs:
        return State("unknown", f"submitted as job {sight.jobs[-1]['job_id']}; no heartbeat yet")
    if (sight.run / "metrics.jsonl").exists():
        return State("unknown", "it keeps no heartbeat")
    return State("not started")


def _ended(beat: Beat) -> State:
    if beat.outcome == "restart":
        return State("interrupted", "saved; submit it again to resume")
    if beat.outcome == FAILED:
        return State(FAILED, f"in {beat.operator}")
    return State(beat.outcome or "")


def _silent(sight: RunStatus, beat: Beat, job: QueuedJob | None) -> State:
    if sight.is_gone:
        return State(FAILED, f"in {beat.operator}; its process is gone")
    if job is None:
        return State("no heartbeat", f"in {beat.operator}")
    why = explained(job.state, beat.job_id or "")
    return State(FAILED, f"in {beat.operator}; Slurm says {why}", job)


def _recorded(run: Path) -> tuple[State | None, float]:
    facts = run / "facts.json"
    try:
        text, written = json.loads(read_regular(facts))["state"], facts.stat().st_mtime
        match = re.match(rf"({'|'.join(_FACTS)})\b(?: (.*))?$", str(text), re.DOTALL)
    except (OSError, ValueError, KeyError, TypeError):
        return None, 0.0
    return (State(match.group(1), match.group(2) or ""), written) if match else (None, 0.0)


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # of another user; /proc may hide it
        return True
    return True


@dataclass(frozen=True)
class Save:
    """The checkpoint that a run would resume from."""

    step: int
    time: float


def saved_steps(run: Path) -> list[int]:
    """Steps that have a whole checkpoint, oldest first."""
    manifests = (run / "checkpoints").glob("step_*/manifest.json")
    names = (path.parent.name.removeprefix("step_") for path in manifests)
    return sorted(int(name) for name in names if name.isdecimal())


def last_save(run: Path) -> Save | None:
    """Return the save that checkpoints/latest points at; None if there is none, or it is not
    whole."""
    try:
        step = (run / "checkpoints" / "latest").readlink().name
        manifest = run / "checkpoints" / step / "manifest.json"
        return Save(int(step.removeprefix("step_")), manifest.stat().st_mtime)
    except (OSError, ValueError):
        return None
