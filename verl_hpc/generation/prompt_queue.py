"""Prompts that engines take from one queue, those with the longest expected responses first.

Longest first is Graham's rule (1969, "Bounds on multiprocessing timing anomalies"). Which engine
answers what then depends on how fast each is, and with it the neighbours of a response in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from verl_hpc.runtime.control import Control
from verl_hpc.step.batch import Samples, StepRows
from verl_hpc.step.placement import Placement


@dataclass
class PromptQueue:
    """Of the engines of a run; every rank that generates has one, and calls its methods alike."""

    name: str
    """No other queue of the job has it."""
    count: Callable[[str], int]
    """Adds 1 to a counter that all engines share, by its name, and gives what it was before."""
    control: Control
    """Of this engine's ranks."""
    _lengths: dict[int, float] = field(default_factory=dict)
    """Mean length of the responses to a row, the last time; a run that resumes knows none."""
    _num_calls: int = 0

    def deal(
        self,
        place: Placement,
        prompts: Mapping[int, Sequence[int]],
        rows: StepRows,
        at_a_time: int,
    ) -> Supply:
        """The prompts of a step, of which this engine takes some.

        Args:
            place: of the engines.
            prompts: token ids by group, the same for all engines.
            rows: that the groups answer.
            at_a_time: prompts that all engines answer at a time.
        """
        self._num_calls += 1
        typical = sum(self._lengths.values()) / max(len(self._lengths), 1)

        def expected(group: int) -> tuple[float, int]:
            return self._lengths.get(rows.rows[group], typical), len(prompts[group])

        order = sorted(sorted(prompts), key=expected, reverse=True)
        num_engines = len(place.groups)
        dealt = num_engines * min(at_a_time, len(order) // num_engines)
        name = f"{self.name}/{self._num_calls}"
        return Supply(order[:dealt][place.index :: num_engines], order[dealt:], self._next(name))

    def learn(self, rows: StepRows, samples: Samples) -> None:
        """Remember how long responses were; every rank knows those of all engines."""
        lengths: dict[int, list[int]] = {}
        for sample in samples:
            lengths.setdefault(rows.rows[sample.group], []).append(sample.response_length)
        self._lengths |= {row: sum(found) / len(found) for row, found in lengths.items()}

    def _next(self, name: str) -> Callable[[], int]:
        def take() -> int:
            if self.control.size == 1:
                return self.count(name)
            mine = self.count(name) if self.control.rank == 0 else None
            return self.control.broadcast(mine)

        return take


@dataclass
class Supply:
    """What one engine answers of a step: some prompts at once, others while there are any."""

    first: Sequence[int]
    """Groups that are its own."""
    others: Sequence[int]
    """Of which any engine takes the next."""
    take: Callable[[], int]
    """The place in `others` of the next one, for this engine alone."""
    taken: list[int] = field(default_factory=list)
    is_empty: bool = False
    """Whether the engine has been told that there is no more."""

    def more(self) -> Sequence[int]:
        """Groups to begin; none where there is no more."""
        found = self.first if not self.taken else ()
        if not found:
            place = self.take() if self.others else math.inf
            found = [self.others[int(place)]] if place < len(self.others) else ()
        self.is_empty = not found
        self.taken += found
        return found
