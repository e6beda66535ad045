"""A queue from which engines take prompts, those with the longest expected responses first.

Longest first is Graham's rule (1969, "Bounds on multiprocessing timing anomalies"). Which engine
answers a prompt depends on the engines' speed, and so do the neighbours of a response in a batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from verl_hpc.rollout.protocol import Feed, FeedAround, Request
from verl_hpc.runtime.control import Control
from verl_hpc.step.batch import Samples, StepRows
from verl_hpc.step.placement import Placement


@dataclass
class PromptQueue:
    """One rank's view of the queue of a run's engines; all generating ranks call its methods in the
    same order."""

    name: str
    """Name, unique among the queues of the job."""
    count: Callable[[str], int]
    """Increment a counter shared by all engines, by name; return its previous value."""
    control: Control
    """Control plane of this engine's ranks."""
    _lengths: dict[str, dict[int, float]] = field(default_factory=dict)
    """Mean response length of each row's last generation, by task; not saved in checkpoints."""
    _num_calls: int = 0

    def deal(
        self, place: Placement, prompts: Mapping[int, Sequence[int]], rows: StepRows, at_a_time: int
    ) -> EnginePrompts:
        """Distribute the prompts of a step; return this engine's supply.

        Args:
            place: placement of the engines.
            prompts: token ids by group, equal for all engines.
            rows: the groups' rows of the data set.
            at_a_time: prompts that each engine answers at a time.
        """
        self._num_calls += 1
        known = self._lengths.get(rows.task, {})
        typical = sum(known.values()) / max(len(known), 1)

        def expected(group: int) -> tuple[float, int]:
            return known.get(rows.rows[group], typical), len(prompts[group])

        order = sorted(sorted(prompts), key=expected, reverse=True)
        num_engines = len(place.groups)
        dealt = num_engines * min(at_a_time, len(order) // num_engines)
        name = f"{self.name}/{self._num_calls}"
        return EnginePrompts(
            order[:dealt][place.index :: num_engines], order[dealt:], self._next(name)
        )

    def learn(self, rows: StepRows, samples: Samples) -> None:
        """Record the response lengths of all engines' samples, by row."""
        lengths: dict[int, list[int]] = {}
        for sample in samples:
            lengths.setdefault(rows.rows[sample.group], []).append(sample.response_length)
        known = self._lengths.setdefault(rows.task, {})
        known |= {row: sum(of_row) / len(of_row) for row, of_row in lengths.items()}

    def _next(self, name: str) -> Callable[[], int]:
        def take() -> int:
            if self.control.size == 1:
                return self.count(name)
            mine = self.count(name) if self.control.rank == 0 else None
            return self.control.broadcast(mine)

        return take


@dataclass
class EnginePrompts:
    """One engine's prompts of a step: its own first ones, then others from the queue."""

    first: Sequence[int]
    """Groups assigned to this engine."""
    others: Sequence[int]
    """Groups in the queue, which any engine may take next."""
    take: Callable[[], int]
    """Take the index in `others` of the next group, which no other engine gets."""
    taken: list[int] = field(default_factory=list)
    is_empty: bool = False
    """Whether the engine has found the queue empty."""

    def more(self) -> Sequence[int]:
        """Take the next groups to start; empty if the queue is empty."""
        groups = self.first if not self.taken else ()
        if not groups:
            place = self.take() if self.others else math.inf
            groups = [self.others[int(place)]] if place < len(self.others) else ()
        self.is_empty = not groups
        self.taken += groups
        return groups


class FromQueue(FeedAround):
    """A feed that starts the requests of the prompts that its engine takes from the queue.

    Args:
        feed: requests to all prompts.
        prompts: what the engine takes from the queue.
        groups: prompt of each request.
        at_a_time: number of responses that the engine generates at a time.
    """

    def __init__(
        self, feed: Feed, prompts: EnginePrompts, groups: Sequence[int], at_a_time: int
    ) -> None:
        super().__init__(feed)
        self._prompts, self._at_a_time = prompts, at_a_time
        self._indices: dict[int, list[int]] = {}
        for index, group in enumerate(groups):
            self._indices.setdefault(group, []).append(index)

    def next(self, num_running: int) -> Sequence[tuple[int, Request]]:
        started: list[tuple[int, Request]] = []
        while num_running + len(started) < self._at_a_time and not self._prompts.is_empty:
            for group in self._prompts.more():
                started += [(index, self.requests[index]) for index in self._indices[group]]
        return started
