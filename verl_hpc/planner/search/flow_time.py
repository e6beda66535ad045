"""Seconds of a step, from those of its operators and the sets of ranks that they run on.

Composes them as `timing.step` does from a compiled flow, but for many placements of one flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from verl_hpc.config.run import RunConfig
from verl_hpc.placement.layouts import ROLLOUT, SCORING
from verl_hpc.planner.timing.operators import Work, operators_of


class _Step(NamedTuple):
    name: str
    place: int
    needs: tuple[int, ...]
    """Indices of the operators that produce its inputs."""
    changes_state: bool


class FlowTime:
    """The operators of a step, in order."""

    def __init__(self, config: RunConfig) -> None:
        self.works = _ordered(operators_of(config))
        self.names = [work.name for work in self.works]
        self._makers = _makers(self.works)
        self._stale = config.rollout.staleness > 0

    def on(self, set_of: Mapping[str, int], trains: Sequence[bool]) -> PlacedFlow:
        """Place each role, and ROLLOUT, on a set.

        Args:
            set_of: number of the set of each role.
            trains: whether a set has a role that is trained.
        """
        steps = []
        for place, work in enumerate(self.works):
            role = ROLLOUT if work.role == SCORING else work.role
            steps.append(_Step(work.name, set_of[role], self._makers[place], work.changes_state))
        ahead = _ahead(steps, trains) if self._stale else frozenset()
        return PlacedFlow(steps, ahead, len(trains))


class PlacedFlow:
    """Operators on sets of ranks."""

    def __init__(self, steps: Sequence[_Step], ahead: frozenset[int], num_sets: int) -> None:
        self._steps, self._num_sets = steps, num_sets
        self._parts = [[i for i in range(len(steps)) if i not in ahead], sorted(ahead)]

    def seconds(self, durations: Sequence[float], refit: float) -> float:
        """Seconds of a step.

        Args:
            durations: of each operator.
            refit: what all ranks wait for at first.
        """
        longest = 0.0
        for part in self._parts:
            free = [0.0] * self._num_sets
            ends = [0.0] * len(self._steps)
            for i in part:
                _, place, needs, _ = self._steps[i]
                begin = free[place]
                for need in needs:
                    if ends[need] > begin:
                        begin = ends[need]
                free[place] = ends[i] = begin + durations[i]
            longest = max(longest, *free)
        return refit + longest


def _ordered(works: Sequence[Work]) -> list[Work]:
    """Order operators as `DataFlow` does: each after the producers of its inputs, otherwise as
    declared."""
    makers = {value: work.name for work in works for value in work.gives}
    ordered: list[Work] = []
    left = list(works)
    while left:
        done = {work.name for work in ordered}
        ready = next(
            work for work in left if done.issuperset(makers[v] for v in _needs(work) if v in makers)
        )
        ordered.append(ready)
        left.remove(ready)
    return ordered


def _needs(work: Work) -> tuple[str, ...]:
    return (*work.needs, *work.optional)


def _makers(works: Sequence[Work]) -> list[tuple[int, ...]]:
    place = {value: i for i, work in enumerate(works) for value in work.gives}
    return [tuple(sorted({place[v] for v in _needs(work) if v in place})) for work in works]


def _ahead(steps: Sequence[_Step], trains: Sequence[bool]) -> frozenset[int]:
    """Operators that run while the previous step trains."""
    ahead: set[int] = set()
    for i, step in enumerate(steps):
        if not step.changes_state and not trains[step.place] and ahead.issuperset(step.needs):
            ahead.add(i)
    return frozenset(ahead)
