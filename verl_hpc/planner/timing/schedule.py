"""When each operator of a compiled flow begins and ends, if ranks wait for nothing but each other.

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
    """Of every operator, in order, and when the last one ends.

    Args:
        pipeline: compiled with its placements.
        seconds: of each operator.
        start: when all ranks are free.
    """
    assert pipeline.placements is not None
    atoms = _atoms(pipeline.placements)
    free: dict[int, float] = {}
    made: dict[str, float] = {}
    found = []
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
        found.append(Span(item.name, place, begin, end))
    return found, max([start, *(span.stop for span in found)])


def _atoms(placements: Mapping[str, Sequence[int]]) -> dict[str, Collection[int]]:
    """Numbers of the classes of ranks that are in the same placements, by placement."""
    names: dict[int, list[str]] = {}
    for name, ranks in placements.items():
        for rank in ranks:
            names.setdefault(rank, []).append(name)
    classes = sorted({tuple(found) for found in names.values()})
    return {name: [i for i, c in enumerate(classes) if name in c] for name in placements}
