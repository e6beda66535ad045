"""When each operator of a step begins and ends, if ranks wait only for each other.

An operator begins when all its ranks are free and what it needs is made; operators on disjoint
ranks overlap. Moves of columns between placements take no time: they are megabytes.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.planner.timing.operators import Work, operators_of


@dataclass(frozen=True)
class Span:
    """An operator from `start` to `stop`, in seconds since its step began."""

    operator: str
    placement: str
    start: float
    stop: float


Step = tuple[Sequence[int], Sequence[int]]
"""Classes of ranks that an operator runs on, and indices of the operators that produce its
inputs."""


class Flow:
    """The operators of a step, in order."""

    def __init__(self, config: RunConfig) -> None:
        self.works = operators_of(config)
        self._needs = _needs(self.works)
        self._stale = config.rollout.staleness > 0

    def on(self, classes: Mapping[str, Sequence[int]], busy: Collection[int]) -> PlacedFlow:
        """Place each role, ROLLOUT and SCORING on classes of ranks.

        Args:
            classes: number of each class that has the role; the ranks of a class have all roles in
                common.
            busy: classes with a role that is trained.
        """
        steps = [
            (classes[work.role], needs) for work, needs in zip(self.works, self._needs, strict=True)
        ]
        ahead: set[int] = set()
        if self._stale:
            # What needs no training rank runs while the previous step trains
            # (`trainer.steps.Steps`).
            for i, (mine, needs) in enumerate(steps):
                trains = self.works[i].changes_state or not set(busy).isdisjoint(mine)
                if not trains and ahead.issuperset(needs):
                    ahead.add(i)
        return PlacedFlow(steps, ahead)


class PlacedFlow:
    """Operators on classes of ranks.

    With rollout.staleness, some of them make the next step while the others train.
    """

    def __init__(self, steps: Sequence[Step], ahead: Collection[int]) -> None:
        self._steps = steps
        self._num_classes = 1 + max(number for classes, _ in steps for number in classes)
        self.parts = [sorted(ahead), [i for i in range(len(steps)) if i not in ahead]]
        """Operators that run ahead, and the others."""

    def ends(self, durations: Sequence[float], start: float = 0.0) -> list[float]:
        """When each operator ends, if all ranks are free at `start`."""
        # List scheduling over classes of ranks, not over single ranks.
        ends = [start] * len(self._steps)
        for part in self.parts:
            free = [start] * self._num_classes
            made = [start] * len(self._steps)
            for i in part:
                classes, needs = self._steps[i]
                begin = start
                for number in classes:
                    if free[number] > begin:
                        begin = free[number]
                for need in needs:
                    if made[need] > begin:
                        begin = made[need]
                ends[i] = made[i] = begin + durations[i]
                for number in classes:
                    free[number] = ends[i]
        return ends

    def seconds(self, durations: Sequence[float], refit: float) -> float:
        """Seconds of a step.

        Args:
            durations: of each operator.
            refit: what all ranks wait for at first.
        """
        return refit + max(self.ends(durations))


def _needs(works: Sequence[Work]) -> list[Sequence[int]]:
    """For each operator, those that produce its inputs."""
    maker: dict[str, int] = {}
    needs: list[Sequence[int]] = []
    for i, work in enumerate(works):
        assert {*maker, "rows"} >= set(work.needs), work
        needs.append(sorted({maker[v] for v in (*work.needs, *work.optional) if v in maker}))
        maker |= dict.fromkeys(work.gives, i)
    return needs


def classes_of(placements: Mapping[str, Iterable[int]]) -> dict[str, list[int]]:
    """For each placement, numbers of the classes of ranks in it; ranks of a class share all
    placements."""
    names: dict[int, list[str]] = {}
    for name, ranks in placements.items():
        for rank in ranks:
            names.setdefault(rank, []).append(name)
    classes = sorted({tuple(placed) for placed in names.values()})
    return {name: [i for i, c in enumerate(classes) if name in c] for name in placements}
