"""What a scheduler of tasks is told, and the weights that it sets."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from verl_hpc.api.tasks.batches import TaskBatches
from verl_hpc.api.tasks.scheduler import DynamicTaskWeightScheduler
from verl_hpc.api.tasks.state import joined, split
from verl_hpc.errors import ConfigError


class Evaluation:
    """Tells a scheduler, if there is one, the means of what tasks are judged by.

    Args:
        batches: whose weights it sets.
        every: steps between two evaluations.
        tasks: names of all.
    """

    def __init__(self, batches: TaskBatches, every: int, tasks: Iterable[str]) -> None:
        self._batches, self._every, self._tasks = batches, every, set(tasks)
        self._means = _Means()
        self._scheduler: DynamicTaskWeightScheduler | None = None

    def set_scheduler(self, scheduler: DynamicTaskWeightScheduler) -> None:
        """See `Trainer.set_task_scheduler`."""
        there = set(scheduler.weights)
        if there != self._tasks:
            raise ConfigError(
                f"set_task_scheduler: initial_weights has {', '.join(sorted(there))}, and "
                f"tasks.yaml has {', '.join(sorted(self._tasks))}; give every task a weight"
            )
        self._batches.set_weights(scheduler.weights)
        self._scheduler = scheduler

    def look(self, step: int, metrics: Mapping[str, float], learned: Iterable[str]) -> None:
        """Take the metrics of a step.

        Args:
            learned: names of tasks that took part.
        """
        if self._scheduler is None:
            return
        for name in learned:
            value = self._scheduler.value_of(name, metrics)
            if value is not None:
                self._means.add(self._scheduler.key_of(name), value)
        if step % self._every == 0:
            self._batches.set_weights(self._scheduler.update(self._means.take()))

    def state(self) -> dict[str, dict[str, float]]:
        """All that changes, as numbers by name, by part."""
        found = {"evaluation": self._means.state()}
        return found if self._scheduler is None else found | {"scheduler": self._scheduler.state()}

    def load_state(self, parts: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what `state` gave."""
        self._means.load_state(parts.get("evaluation", {}))
        if self._scheduler is not None:
            self._scheduler.load_state(parts.get("scheduler", {}))
            self._batches.set_weights(self._scheduler.weights)


class _Means:
    """Means of metrics since the last time they were taken."""

    def __init__(self) -> None:
        self._sums: dict[str, float] = {}
        self._counts: dict[str, float] = {}

    def add(self, name: str, value: float) -> None:
        """A value that is not finite is left out."""
        if math.isfinite(value):
            self._sums[name] = self._sums.get(name, 0.0) + value
            self._counts[name] = self._counts.get(name, 0.0) + 1

    def take(self) -> dict[str, float]:
        """The means, and begin anew."""
        found = {name: total / self._counts[name] for name, total in self._sums.items()}
        self._sums, self._counts = {}, {}
        return found

    def state(self) -> dict[str, float]:
        """As numbers by name."""
        return joined({"sum": self._sums, "count": self._counts})

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave."""
        parts = split(state)
        self._sums, self._counts = parts.get("sum", {}), parts.get("count", {})
