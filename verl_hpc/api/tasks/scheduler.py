"""Weights of tasks that follow how they improve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from verl_hpc.api.tasks.state import joined, split
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import CheckpointError, ConfigError


@dataclass
class _Task:
    weight: float
    best: float | None = None
    """Of its metric; None before the first evaluation."""
    stale: int = 0
    """Evaluations since it was last better than its best."""


class DynamicTaskWeightScheduler:
    """Shifts weight from tasks that have stopped improving to the others.

    A task whose metric has not risen above its best for `patience` evaluations gives away, at that
    evaluation and at each one until it rises again, the share `rate` of what it has above the
    floor; the tasks that still improve get it in proportion to their weights. Where all have
    stopped, or none has, nothing moves. Weights always sum to 1.

    Args:
        initial_weights: of each task; they are divided by their sum.
        metric_key: of what a task is judged by, `task/NAME/KEY` of the metrics; higher is better.
        patience: evaluations without a new best after which a task has stopped improving.
        min_weight: no task's weight goes below it.
        rate: as above.
        min_delta: a metric has to be so much above its best to count.

    Raises:
        ConfigError: weights that are not positive, or a floor that they do not leave room for.
    """

    @checked
    def __init__(
        self,
        initial_weights: Mapping[str, float],
        metric_key: str = "reward",
        patience: int = 3,
        min_weight: float = 0.05,
        rate: float = 0.5,
        min_delta: float = 0.0,
    ) -> None:
        self.metric_key, self.patience, self.min_weight = metric_key, patience, min_weight
        self.rate, self.min_delta = rate, min_delta
        self._check(initial_weights)
        total = math.fsum(initial_weights.values())
        self._tasks = {name: _Task(w / total) for name, w in initial_weights.items()}
        below = [name for name, task in self._tasks.items() if task.weight < min_weight]
        if below:
            raise ConfigError(
                f"DynamicTaskWeightScheduler: initial_weights gives {below[0]} "
                f"{self._tasks[below[0]].weight:g} of the sum, below min_weight = {min_weight:g}; "
                "raise it, or lower min_weight"
            )

    def _check(self, weights: Mapping[str, float]) -> None:
        where = "DynamicTaskWeightScheduler:"
        if not weights:
            raise ConfigError(f"{where} initial_weights is empty; give each task's weight by name")
        for name, weight in weights.items():
            if not (math.isfinite(weight) and weight > 0):
                raise ConfigError(
                    f"{where} initial_weights[{name!r}] = {weight}; must be finite and above 0"
                )
        if self.patience < 1:
            raise ConfigError(f"{where} patience = {self.patience}; must be at least 1")
        if not 0 <= self.min_weight * len(weights) <= 1:
            raise ConfigError(
                f"{where} min_weight = {self.min_weight:g} for each of {len(weights)} tasks; must "
                f"be from 0 to {1 / len(weights):g}"
            )
        if not 0 <= self.min_delta < math.inf:
            raise ConfigError(
                f"{where} min_delta = {self.min_delta:g}; must be finite and at least 0"
            )
        if not 0 < self.rate <= 1:
            raise ConfigError(f"{where} rate = {self.rate:g}; must be above 0 and at most 1")

    @property
    def weights(self) -> dict[str, float]:
        """By task; they sum to 1."""
        return {name: task.weight for name, task in self._tasks.items()}

    def key_of(self, task: str) -> str:
        """The metric that a task is judged by."""
        return f"task/{task}/{self.metric_key}"

    def update(self, metrics: Mapping[str, float]) -> dict[str, float]:
        """Take notice of an evaluation.

        Args:
            metrics: by their whole names; a task that none is of was not evaluated, and is judged
                by what was known.

        Returns:
            The weights from now on.

        Raises:
            ConfigError: a task has metrics, and not the one that it is judged by.
        """
        for name, task in self._tasks.items():
            value = self.value_of(name, metrics)
            if value is None:
                continue
            if task.best is None or value > task.best + self.min_delta:
                task.best, task.stale = value, 0
            else:
                task.stale += 1
        self._shift()
        return self.weights

    def value_of(self, name: str, metrics: Mapping[str, float]) -> float | None:
        """What a task is judged by; None where it has no metrics, or this one is not finite.

        Raises:
            ConfigError: it has metrics, and not this one.
        """
        key, prefix = self.key_of(name), f"task/{name}/"
        if key not in metrics:
            others = [m.removeprefix(prefix) for m in metrics if m.startswith(prefix)]
            if not others:
                return None
            raise ConfigError(
                f"DynamicTaskWeightScheduler: metric_key = {self.metric_key!r}: {name} has no such "
                f"metric; {near_or_all(self.metric_key, others)}"
            )
        value = metrics[key]
        return value if math.isfinite(value) else None

    def _shift(self) -> None:
        stopped = [t for t in self._tasks.values() if t.stale >= self.patience]
        others = [t for t in self._tasks.values() if t.stale < self.patience]
        if not stopped or not others:
            return
        # Some rounding may have left a weight a bit below the floor.
        given = [max(self.rate * (t.weight - self.min_weight), 0.0) for t in stopped]
        for task, part in zip(stopped, given, strict=True):
            task.weight = max(task.weight - part, self.min_weight)
        total = math.fsum(t.weight for t in others)
        rest = 1 - math.fsum(t.weight for t in stopped)
        for task in others:
            task.weight *= rest / total

    def state(self) -> dict[str, float]:
        """All that changes, as numbers by name."""
        parts: dict[str, dict[str, float]] = {}
        for name, task in self._tasks.items():
            parts[name] = {"weight": task.weight, "stale": float(task.stale)}
            if task.best is not None:
                parts[name]["best"] = task.best
        return joined(parts)

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave.

        Raises:
            CheckpointError: it is of other tasks.
        """
        there = split(state)
        if not there:
            raise CheckpointError(
                "the step was saved without a scheduler, and this trainer has one; load it first, "
                "and call set_task_scheduler after it"
            )
        if there.keys() != self._tasks.keys():
            raise CheckpointError(
                f"the checkpoint's task weights are of {', '.join(sorted(there))}, "
                f"the scheduler's of {', '.join(sorted(self._tasks))}; give the scheduler that it "
                "was saved with"
            )
        for name, task in self._tasks.items():
            own = there[name]
            task.weight, task.best, task.stale = own["weight"], own.get("best"), int(own["stale"])
