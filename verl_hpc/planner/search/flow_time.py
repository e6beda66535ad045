"""Seconds of a step, from those of its operators and the sets of ranks that they run on.

Composes them as `timing.step` does from a compiled flow, but for many placements of one flow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from verl_hpc.config.run import RunConfig
from verl_hpc.placement.layouts import ROLLOUT, SCORING
from verl_hpc.planner.timing.operators import compiled, operators_of


class _Step(NamedTuple):
    name: str
    place: int
    needs: tuple[int, ...]
    """Indices of the operators that produce its inputs."""
    changes_state: bool


class FlowTime:
    """The operators of a step, in order."""

    def __init__(self, config: RunConfig) -> None:
        works, runs = {work.name: work for work in operators_of(config)}, compiled(config).runs
        self.works = [works[run.name] for run in runs]
        self.names = [run.name for run in runs]
        place = {value: i for i, work in enumerate(self.works) for value in work.gives}
        self._makers = [tuple(sorted({place[v] for v in r.values if v in place})) for r in runs]
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


def _ahead(steps: Sequence[_Step], trains: Sequence[bool]) -> frozenset[int]:
    """Operators that run while the previous step trains."""
    ahead: set[int] = set()
    for i, step in enumerate(steps):
        if not step.changes_state and not trains[step.place] and ahead.issuperset(step.needs):
            ahead.add(i)
    return frozenset(ahead)
