"""Weights of tasks that follow how they improve."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Annotated

from pydantic import Field

from verl_hpc.api.tasks.state import joined, split
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import CheckpointError, ConfigError
from verl_hpc.section import Fraction, NonNegativeFinite, Number, Positive, PositiveFinite

Share = Annotated[Number, Field(gt=0.0, le=1.0)]


@dataclass
class _Task:
    weight: float
    best: float | None = None
    """Best mean of its metric; None before the first evaluation."""
    stale: float = 0
    """Evaluations since the mean was last better than the best."""
    total: float = 0.0
    """Sum of its metric since the last evaluation."""
    count: float = 0


class DynamicTaskWeightScheduler:
    """Shifts weight from tasks that have stopped improving to the others.

    A task whose metric has not risen above its best for `patience` evaluations gives away, at that
    evaluation and at each one until it rises again, the share `rate` of what it has above the
    floor; the tasks that still improve get it in proportion to their weights. Where all have
    stopped, or none has, nothing moves. Weights always sum to 1.

    Args:
        initial_weights: weight of each task; they are divided by their sum.
        metric_key: metric that a task is judged by, `task/NAME/KEY`; higher is better.
        patience: evaluations without a new best after which a task has stopped improving.
        min_weight: no task's weight goes below it.
        rate: share that a task gives away, see above.
        min_delta: a metric has to be so much above its best to count.

    Raises:
        ConfigError: weights that are not positive, or a floor that they do not leave room for.
    """

    @checked
    def __init__(
        self,
        initial_weights: Annotated[Mapping[str, PositiveFinite], Field(min_length=1)],
        metric_key: str = "reward",
        patience: Positive = 3,
        min_weight: Fraction = 0.05,
        rate: Share = 0.5,
        min_delta: NonNegativeFinite = 0.0,
    ) -> None:
        self.metric_key, self.patience, self.min_weight = metric_key, patience, min_weight
        self.rate, self.min_delta = rate, min_delta
        total = math.fsum(initial_weights.values())
        self._tasks = {name: _Task(w / total) for name, w in initial_weights.items()}
        for name, weight in self.weights.items():
            if weight < min_weight:
                raise ConfigError(
                    f"DynamicTaskWeightScheduler: initial_weights gives {name} {weight:g} of the "
                    f"sum, below min_weight = {min_weight:g}; raise it, or lower min_weight to at "
                    f"most {1 / len(self._tasks):g}"
                )

    @property
    def weights(self) -> dict[str, float]:
        """Share of each task; they sum to 1."""
        return {name: task.weight for name, task in self._tasks.items()}

    def observe(self, metrics: Mapping[str, float]) -> None:
        """Add a step's metrics, by their whole names, to the next evaluation.

        A task that took no part in the step, or whose metric is not finite, is left out.

        Raises:
            ConfigError: a task took part, and has no metric `metric_key`.
        """
        for name, task in self._tasks.items():
            prefix = f"task/{name}/"
            value = metrics.get(f"{prefix}{self.metric_key}")
            if value is not None and math.isfinite(value):
                task.total, task.count = task.total + value, task.count + 1
            elif value is None and f"{prefix}reward" in metrics:
                others = [m.removeprefix(prefix) for m in metrics if m.startswith(prefix)]
                raise ConfigError(
                    f"DynamicTaskWeightScheduler: metric_key = {self.metric_key!r}: {name} has no "
                    f"such metric; {near_or_all(self.metric_key, others)}"
                )

    def update(self) -> dict[str, float]:
        """Evaluate the means of what was observed; return the weights from now on."""
        for task in self._tasks.values():
            if not task.count:
                continue
            mean = task.total / task.count
            if task.best is None or mean > task.best + self.min_delta:
                task.best, task.stale = mean, 0
            else:
                task.stale += 1
            task.total, task.count = 0.0, 0
        self._shift()
        return self.weights

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
        """Return all that changes, as numbers by name."""
        parts = {name: asdict(task) for name, task in self._tasks.items()}
        return {name: n for name, n in joined(parts).items() if n is not None}

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave.

        Raises:
            CheckpointError: it is of other tasks.
        """
        saved = split(state)
        if saved.keys() != self._tasks.keys():
            raise CheckpointError(
                f"the step was saved with a scheduler of the tasks {', '.join(sorted(saved))}, "
                f"and this one is of {', '.join(sorted(self._tasks))}; give the scheduler that it "
                "was saved with, or call set_task_scheduler behind load_checkpoint"
                if saved
                else "the step was saved without a scheduler, and this trainer has one; load it "
                "first, and call set_task_scheduler after it"
            )
        self._tasks = {name: _Task(**numbers) for name, numbers in saved.items()}
