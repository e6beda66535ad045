"""Format a run's status as lines for people or as one JSON object."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verl_hpc.cli.status_progress import Progress
from verl_hpc.metrics.names import OVERLAP, STATUS
from verl_hpc.metrics.text import duration, number
from verl_hpc.runs.heartbeat import FAILED
from verl_hpc.runs.logs.read import attempts_of
from verl_hpc.runs.ranks import Ranks
from verl_hpc.runs.ranks import described as described_placement
from verl_hpc.runs.reasons import explained
from verl_hpc.runs.status import RunStatus, Save, State

if TYPE_CHECKING:
    from verl_hpc.config.requests import Request

_SKEW_S = 5.0
_BAR = 30


@dataclass(frozen=True)
class Status:
    """Everything that is shown about a run."""

    run: Path
    sight: RunStatus
    state: State
    progress: Progress
    total_steps: int | None
    most_restarts: int | None
    save: Save | None
    requests: tuple[Request, ...]
    problem: str = ""
    """Why Slurm did not answer."""
    ranks: Ranks | None = None
    """Positions of all ranks; only read for a run with placements."""

    @property
    def remaining_s(self) -> float | None:
        return None if self.state.is_over else self.progress.remaining_s(self.total_steps)


def as_json(status: Status) -> dict[str, Any]:
    """Return plain values; durations in seconds, times in seconds since the epoch."""
    sight, state, progress = status.sight, status.state, status.progress
    beat, queue = sight.beat, state.queue
    return {
        "run": str(status.run),
        "state": state.name,
        "detail": state.detail,
        "step": progress.step,
        "total_steps": status.total_steps,
        "operator": beat.operator if beat else None,
        "placements": _placements_as_json(status),
        "heartbeat_age_s": round(sight.silent_s, 1) if beat else None,
        "host": beat.host if beat else None,
        "nodes": beat.nodes if beat else None,
        "job_id": beat.job_id if beat else None,
        "attempt": beat.attempt if beat else None,
        "restarts": beat.restarts if beat else None,
        "most_restarts": status.most_restarts,
        "queue": {"state": queue.state, "reason": queue.reason, "start": queue.start}
        if queue
        else None,
        "seconds_per_step": progress.seconds,
        "seconds_by_operator": dict(progress.operators),
        "operators_overlap": progress.overlaps,
        "tokens_per_s": progress.tokens_per_s,
        "metrics": {name: figure.value for name, figure in progress.figures.items()},
        "last_save": {"step": status.save.step, "time": status.save.time} if status.save else None,
        "remaining_s": status.remaining_s,
        "requests": [request.model_dump() for request in status.requests],
        "problem": status.problem,
    }


def as_text(status: Status) -> str:
    """Return aligned lines, without those about which nothing is known."""
    lines = [f"{status.run}: {headline(status)}"]
    lines += [f"  {label:<10} {text}" for label, text in as_rows(status)]
    return "\n".join([*lines, *_operators(status.progress)])


def as_rows(status: Status) -> list[tuple[str, str]]:
    """Return the known facts, each with its label."""
    rows = [
        ("step", _step(status)),
        ("pace", _pace(status)),
        ("metrics", _metrics(status.progress)),
        *placements(status),
        ("last save", _save(status)),
        ("job", _job(status)),
        ("request", "; ".join(map(described, status.requests))),
        ("note", _note(status)),
    ]
    return [(label, text) for label, text in rows if text]


def placements(status: Status) -> list[tuple[str, str]]:
    """Return rows with the ranks, roles and current operators of a split run's placements."""
    beat = status.sight.beat
    if beat is None:
        return []
    ranks = None if status.state.is_over else status.ranks
    rows = [f"{placed.name}: {described_placement(placed, ranks)}" for placed in beat.placements]
    if rows and ranks is not None:
        rows[0] += f"   (seen {ago(status.sight.now - ranks.time)})"
    labels = ["placement", *[""] * len(rows)]
    return list(zip(labels, rows, strict=False))


def _placements_as_json(status: Status) -> list[dict[str, Any]]:
    beat, ranks = status.sight.beat, None if status.state.is_over else status.ranks
    return [
        {
            "name": placed.name,
            "first_rank": placed.first_rank,
            "last_rank": placed.last_rank,
            "roles": list(placed.roles),
            "num_ranks_by_operator": {
                name: len(numbers) for name, numbers in placed.operators(ranks).items()
            },
            "seen_s": None if ranks is None else round(max(status.sight.now - ranks.time, 0.0), 1),
        }
        for placed in (beat.placements if beat else ())
    ]


def ago(seconds: float) -> str:
    """Return 'just now', '12.0s ago' or '3m 05s ago'; times in the future, of a clock that is
    ahead, are 'just now'."""
    return "just now" if seconds < 1 else f"{duration(seconds)} ago"


def headline(status: Status) -> str:
    """Return the state in one line."""
    state, sight = status.state, status.sight
    words = state.name
    if state.name == "no heartbeat":
        words += f" for {duration(sight.silent_s)}"
    details = [state.detail] if state.detail else []
    if state.queue is not None and state.name == "queued":
        if state.queue.reason:
            details.append(explained(state.queue.reason, state.job_id or "JOB"))
        start = state.queue.start.replace("T", " ")
        details.append(f"expected to start {start}" if start else "no estimate of its start")
    return f"{words}: {'; '.join(details)}" if details else words


def _step(status: Status) -> str:
    done, total = status.progress.step, status.total_steps
    words = f"{done} done" if total is None else f"{done} of {total} done"
    beat = status.sight.beat
    if beat is not None and beat.outcome is None and beat.step > done:
        words += f", step {beat.step} under way"
    if beat is not None and not status.state.is_over:
        words += f"; heartbeat {ago(status.sight.silent_s)}"
    return words


def _pace(status: Status) -> str:
    progress = status.progress
    if progress.seconds is None:
        return ""
    words = [f"{duration(progress.seconds)} a step (mean of the last {progress.num_recent})"]
    if progress.tokens_per_s is not None:
        words.append(f"{number(progress.tokens_per_s)} tokens/s")
    if (left := status.remaining_s) is not None:
        end = time.strftime("%a %d %b %H:%M", time.localtime(status.sight.now + left))
        words.append(f"{duration(left)} to go: {end}")
    return ", ".join(words)


def _metrics(progress: Progress) -> str:
    words = []
    for name, figure in progress.figures.items():
        value = "not finite" if figure.value is None else number(figure.value)
        at = f" at step {figure.step}" if figure.step != progress.step else ""
        words.append(f"{STATUS[name]} {value}{at}")
    return ", ".join(words)


def _save(status: Status) -> str:
    if status.save is None:
        return "none yet" if status.progress.step else ""
    return f"step {status.save.step}, {ago(status.sight.now - status.save.time)}"


def _job(status: Status) -> str:
    beat = status.sight.beat
    if beat is None:
        return ""
    words = [f"{beat.job_id} on {beat.nodes}" if beat.job_id else f"no job: {beat.host}"]
    if beat.attempt is not None:
        words.append(f"attempt {beat.attempt}")
    if beat.job_id:
        most = "" if status.most_restarts is None else f" of {status.most_restarts}"
        words.append(f"restarts {beat.restarts}{most}")
    return ", ".join(words)


def described(request: Request) -> str:
    """Describe a request: 'stop after step 50, asked by ann'."""
    after = f" after step {request.after_step}" if request.after_step else ""
    return f"{request.kind}{' now' if request.now else ''}{after}, asked by {request.by}"


def _note(status: Status) -> str:
    notes = []
    ahead = status.sight.clock_ahead_s
    if status.sight.beat is not None and ahead > _SKEW_S:
        notes.append(
            f"the clock of {status.sight.beat.host} is {duration(ahead)} ahead of this machine's"
        )
    if status.state.name == FAILED and attempts_of(status.run):
        notes.append(f"`python -m verl_hpc logs {status.run} --first-error` says why")
    if status.problem:
        notes.append(f"Slurm did not answer: {status.problem}")
    return "; ".join(notes)


def _operators(progress: Progress) -> Iterator[str]:
    longest = max(progress.operators.values(), default=0.0)
    if not longest or progress.seconds is None:
        return
    yield ""
    if progress.overlaps:
        yield f"  a mean step, {OVERLAP}:"
    width = max(map(len, progress.operators))
    for name, spent in progress.operators.items():
        bar = "#" * round(_BAR * spent / longest)
        share = "" if progress.overlaps else f"{spent / progress.seconds:.0%}"
        yield f"  {name:<{width}}  {duration(spent):>7}  {share:>4}  {bar}".rstrip()
