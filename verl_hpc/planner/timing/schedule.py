"""Start and end of each operator of a compiled flow, if ranks wait only for each other.

An operator begins when all its ranks are free and what it needs is made; operators on disjoint
ranks overlap. Moves of columns between placements take no time: they are megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.flow import Pipeline
from verl_hpc.flow.pipeline import Run


@dataclass(frozen=True)
class Span:
    """An operator from `start` to `stop`, in seconds since its step began."""

    operator: str
    placement: str
    start: float
    stop: float


def spans_of(
    pipeline: Pipeline, seconds: Mapping[str, float], start: float = 0.0
) -> tuple[list[Span], float]:
    """Return the span of every operator, in order, and the time at which the last one ends.

    Args:
        pipeline: compiled with its placements.
        seconds: of each operator.
        start: when all ranks are free.
    """
    # List scheduling over classes of ranks that share all placements, not over single ranks.
    assert pipeline.placements is not None
    atoms = _atoms(pipeline.placements)
    free: dict[int, float] = {}
    made: dict[str, float] = {}
    spans = []
    for item in pipeline.schedule:
        if not isinstance(item, Run):
            continue
        place = item.operator.placement
        ready = [free.get(atom, start) for atom in atoms[place]]
        begin = max([start, *ready, *(made.get(value, start) for value in pipeline.needs(item))])
        end = begin + seconds[item.name]
        for atom in atoms[place]:
            free[atom] = end
        for value in item.operator.gives:
            made[value] = end
        spans.append(Span(item.name, place, begin, end))
    return spans, max([start, *(span.stop for span in spans)])


def _atoms(placements: Mapping[str, Sequence[int]]) -> dict[str, Collection[int]]:
    """For each placement, numbers of the classes of ranks in it; ranks of a class share all
    placements."""
    names: dict[int, list[str]] = {}
    for name, ranks in placements.items():
        for rank in ranks:
            names.setdefault(rank, []).append(name)
    classes = sorted({tuple(placed) for placed in names.values()})
    return {name: [i for i, c in enumerate(classes) if name in c] for name in placements}
