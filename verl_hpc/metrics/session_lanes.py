"""Lanes of a step's sessions with programs and environments, for its timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

from verl_hpc.metrics.lanes import Lane
from verl_hpc.metrics.samples import SampleResponse, SampleSession, read_samples
from verl_hpc.metrics.timeline import Interval

MODEL, OUTSIDE = "in the model", "outside"
SESSION_COLOURS = {MODEL: "c1", OUTSIDE: "c7"}
SESSIONS = (
    "A session is named by its prompt and response below Samples: in the model at least one of its "
    "turns was asked for and had not ended, outside its program or environment was at work."
)


def session_lanes(run_directory: Path, steps: Sequence[int], zero: float) -> list[Lane]:
    """Return a lane for each session that is kept of the newest of some steps with any, in the
    order of prompts and responses; what was before `zero` is cut off.

    Args:
        run_directory: the run's directory.
        steps: steps that are shown.
        zero: the time from which lanes count.
    """
    for step in sorted(steps, reverse=True):
        rows = [
            Lane(name, spans, f"sessions of step {step}")
            for name, branches in _sessions(run_directory, step)
            if (spans := list(_spans(step, branches, zero)))
        ]
        if rows:
            return rows
    return []


def _sessions(run_directory: Path, step: int) -> Iterator[tuple[str, list[SampleResponse]]]:
    """Yield the sessions of a step's training by their names, each with its branches."""
    for number, group in enumerate(read_samples(run_directory, step).get("train", ()), 1):
        for place, branches in enumerate(group.sessions, 1):
            yield f"{number}.{place}", branches


def _spans(step: int, branches: Sequence[SampleResponse], zero: float) -> Iterator[Interval]:
    """Yield the times of a session in the model and outside, one after another."""
    session = branches[0].session
    if session is None or session.begun is None:
        return
    until = session.begun
    for begun, ended in _in_model(branches):
        yield from _span(step, OUTSIDE, until, begun, zero)
        yield from _span(step, MODEL, max(begun, until), ended, zero)
        until = max(until, ended)
    yield from _span(step, OUTSIDE, until, _end(session), zero)


def _in_model(branches: Sequence[SampleResponse]) -> list[tuple[float, float]]:
    turns = [turn for branch in branches for turn in branch.turns]
    return sorted((t.begun, t.begun + t.model_s) for t in turns if t.begun is not None)


def _end(session: SampleSession) -> float:
    assert session.begun is not None
    return session.begun + session.model_s + session.program_s


def _span(step: int, what: str, begun: float, ended: float, zero: float) -> Iterator[Interval]:
    if ended > max(begun, zero):
        yield Interval(0, step, what, "", max(begun - zero, 0.0), ended - zero)
