"""Guards of metrics: training goes back where one gets much worse."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.api.tasks.progress import Checkpoints
from verl_hpc.api.tasks.scheduler import Share
from verl_hpc.api.tasks.settings import TasksConfig
from verl_hpc.api.tasks.state import joined, split
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import ConfigError, TrainingError, VerlHpcError
from verl_hpc.section import Finite, NonNegativeFinite, Positive

_logger = logging.getLogger(__name__)
_Some = Field(min_length=1)


@dataclass(frozen=True)
class MetricDrop:
    """A monitored metric that got worse than is allowed."""

    metric: str
    value: float
    best: float
    """The value that it is measured against."""
    step: int
    reason: str = ""
    """Why there is no value, where a logit, reward, loss or gradient is not finite."""

    def __str__(self) -> str:
        if self.reason:
            return f"{self.metric} at step {self.step} is not finite ({self.reason})"
        return (
            f"{self.metric} = {self.value:.4g} at step {self.step} is too far from {self.best:.4g}"
        )


@dataclass(frozen=True)
class Rollback:
    """How training was taken back behind a fall."""

    fall: MetricDrop
    to_step: int
    """Step whose weights, optimizers and counters training has now."""
    seed: int
    """Seed of the samples from now on."""
    lr_factor: float
    """Factor of all learning rates from now on."""

    def __str__(self) -> str:
        return (
            f"{self.fall}; went back to the checkpoint of step {self.to_step}, and goes on with "
            f"seed {self.seed} and learning rates times {self.lr_factor:g}"
        )


Alert = Callable[[Rollback], bool | None]
"""A function that is called at a rollback, while training is paused; False ends training there."""


def log_alert(rollback: Rollback) -> None:
    """Write a line of the log: the default alert."""
    _logger.warning("SafetyGuard: %s", rollback)


class SafetyGuard:
    """A watch over metrics that takes training back to an earlier checkpoint.

    After a step whose metric is worse than the best so far (or its baseline) by more than
    `threshold_delta`, training pauses: weights, optimizers and counters become those of the newest
    checkpoint that is at least `rollback_steps` steps old (early on, of the oldest there is),
    `alert` is called, and training continues from there. So that it does not fall the same way
    again, samples are drawn with another seed, and all learning rates are multiplied with
    `lr_factor`, once more at each rollback. A logit, reward, loss or gradient that is not finite,
    of a task of which something is monitored, is such a fall, too.

    Args:
        monitor_metrics: names of metrics, such as task/NAME/reward, where higher is better; or a
            mapping from names to max or min, which is better.
        threshold_delta: how much worse is allowed, in the metric's unit.
        rollback_steps: at least so many steps back.
        alert: called with the `Rollback`.
        baseline: by metric, what it is measured against in place of its best so far.
        window: so many of its newest values are averaged before they are compared.
        lr_factor: factor of learning rates, see above; 1 leaves them as they are.
        max_rollbacks: the next one is an error; a fall that comes back is not a matter of chance.

    Raises:
        ConfigError: a value that is not allowed.
    """

    @checked
    def __init__(
        self,
        monitor_metrics: str
        | Annotated[Sequence[str], _Some]
        | Annotated[Mapping[str, Literal["max", "min"]], _Some],
        threshold_delta: NonNegativeFinite,
        rollback_steps: Positive,
        alert: Alert = log_alert,
        baseline: Mapping[str, Finite] | None = None,
        window: Positive = 1,
        lr_factor: Share = 0.5,
        max_rollbacks: Positive = 3,
    ) -> None:
        if isinstance(monitor_metrics, str):
            monitor_metrics = [monitor_metrics]
        if not isinstance(monitor_metrics, Mapping):
            monitor_metrics = dict.fromkeys(monitor_metrics, "max")
        self.metrics = dict(monitor_metrics)
        self.threshold_delta, self.rollback_steps = threshold_delta, rollback_steps
        self.alert, self.baseline, self.window = alert, dict(baseline or {}), window
        self.lr_factor, self.max_rollbacks = lr_factor, max_rollbacks
        for name in self.baseline:
            if name not in self.metrics:
                raise ConfigError(f"SafetyGuard: baseline[{name!r}]: not one of monitor_metrics")
        self._best: dict[str, float] = {}
        self._newest: dict[str, deque[float]] = {n: deque(maxlen=window) for n in self.metrics}

    def look(self, step: int, metrics: Mapping[str, float], reason: str = "") -> MetricDrop | None:
        """Return the first metric of a step that fell too far, if one did.

        A metric of a task that took no part is passed over; NaN and infinity fall too far at once.

        Args:
            reason: why a metric is not finite, if it is known.

        Raises:
            ConfigError: a task took part, and has no metric of a name that is monitored.
        """
        for name, better in self.metrics.items():
            if name not in metrics:
                _check_name(name, metrics)
                continue
            newest, sign = self._newest[name], 1.0 if better == "max" else -1.0
            newest.append(metrics[name])
            if not math.isfinite(metrics[name]):
                best = self._reference(name, metrics[name])
                return MetricDrop(name, metrics[name], best, step, reason)
            if len(newest) < self.window:
                continue
            value = math.fsum(newest) / len(newest)
            best = self._reference(name, value)
            if sign * (best - value) > self.threshold_delta:
                return MetricDrop(name, value, best, step)
            if sign * (value - self._best.get(name, value)) >= 0:
                self._best[name] = value
        return None

    def _reference(self, name: str, value: float) -> float:
        return self.baseline.get(name, self._best.get(name, value))

    def state(self) -> dict[str, float]:
        """All that changes, as numbers by name; window values have their place behind the name."""
        newest = {
            f"{i:03d}/{name}": value
            for name, values in self._newest.items()
            for i, value in enumerate(values)
            if math.isfinite(value)
        }
        return joined({"best": self._best, "newest": newest})

    def load_state(self, state: Mapping[str, float]) -> None:
        """Go on from what `state` gave; metrics that are not monitored any more are left out."""
        parts = split(state)
        best, newest = parts.get("best", {}), split(parts.get("newest", {}))
        self._best = {name: best[name] for name in self.metrics if name in best}
        for name, values in self._newest.items():
            values.clear()
            values.extend(newest[i][name] for i in sorted(newest, key=int) if name in newest[i])


def _check_name(name: str, metrics: Mapping[str, float]) -> None:
    prefix = "/".join(name.split("/")[:2]) + "/"
    if f"{prefix}reward" in metrics:  # the task took part
        known = [metric for metric in metrics if metric.startswith(prefix)]
        raise ConfigError(
            f"SafetyGuard: monitor_metrics: no metric is called {name}; {near_or_all(name, known)}"
        )


class Guards:
    """Guards, and what earlier rollbacks have changed.

    Args:
        config: settings of the tasks.
    """

    def __init__(self, config: TasksConfig) -> None:
        self._config = config
        self._guards: list[SafetyGuard] = []
        self.num_rollbacks = 0
        self.lr_factor = 1.0
        """Factor of all learning rates."""

    def __len__(self) -> int:
        return len(self._guards)

    @property
    def seed(self) -> int:
        """Seed of the samples."""
        return self._config.seed + self.num_rollbacks

    def add(self, guard: SafetyGuard, weights: Mapping[str, float]) -> None:
        """See `Trainer.add_guard`; `weights` are shares of the prompts by task."""
        every, keep, back = self._config.checkpoint_every, self._config.keep, guard.rollback_steps
        least = -(-back // (every or 1)) + 1
        prefixes = {f"task/{name}/": weight for name, weight in weights.items()}
        refusals = {
            "this SafetyGuard is there already; a second look at a step would count it twice": any(
                guard is other for other in self._guards
            ),
            "checkpoint_every = 0 of tasks.yaml saves nothing to go back to; set it": not every,
            f"rollback_steps = {back} with checkpoint_every = {every} and keep = {keep} of "
            f"tasks.yaml: steps so old are gone; set keep to at least {least}, or to null": (
                keep is not None and (keep - 1) * every < back
            ),
        }
        for metric in guard.metrics:
            weight = next((w for p, w in prefixes.items() if metric.startswith(p)), None)
            refusals[
                f"monitor_metrics: {metric} is not of a task; names begin with "
                f"{' or '.join(prefixes)}"
            ] = weight is None
            refusals[
                f"monitor_metrics: {metric} is of a task whose weight is 0, and would never be "
                "seen; give the task a weight"
            ] = weight == 0
        for words, applies in refusals.items():
            if applies:
                raise ConfigError(f"add_guard: {words}")
        self._guards.append(guard)

    def look(
        self, step: int, metrics: Mapping[str, float]
    ) -> tuple[SafetyGuard, MetricDrop] | None:
        """Return the first guard that sees a fall in a step's metrics, if one does."""
        for guard in self._guards:
            fall = guard.look(step, metrics)
            if fall is not None:
                return guard, fall
        return None

    def not_finite(
        self, step: int, task: str, error: VerlHpcError
    ) -> tuple[SafetyGuard, MetricDrop] | None:
        """Return the first guard of a task whose step met what is not finite, if there is one."""
        for guard in self._guards:
            for name in guard.metrics:
                if name.startswith(f"task/{task}/"):
                    fall = guard.look(step, {name: math.nan}, str(error))
                    assert fall is not None
                    return guard, fall
        return None

    def target(self, guard: SafetyGuard, fall: MetricDrop, checkpoints: Checkpoints) -> Path:
        """Return the step to go back to: the oldest where none is as old as the guard asks for.

        Raises:
            TrainingError: it fell too often, or nothing was saved before it fell.
        """
        if self.num_rollbacks >= guard.max_rollbacks:
            raise TrainingError(
                f"SafetyGuard: {fall} after {self.num_rollbacks} rollbacks (max_rollbacks); lower "
                "the learning rates, or look at the reward"
            )
        step = checkpoints.before(fall.step - guard.rollback_steps)
        if step is None:
            raise TrainingError(f"SafetyGuard: {fall}, and no step was saved before")
        return step

    def state(self) -> dict[str, dict[str, float]]:
        """Return all that changes, as numbers by name, by part."""
        own = {"rollbacks": float(self.num_rollbacks), "lr_factor": self.lr_factor}
        return {
            "watch": own,  # its name in checkpoints
            **{f"guard_{i}": guard.state() for i, guard in enumerate(self._guards)},
        }

    def load_state(self, parts: Mapping[str, Mapping[str, float]]) -> None:
        """Go on from what `state` gave."""
        own = parts["watch"]
        self.num_rollbacks, self.lr_factor = int(own["rollbacks"]), own["lr_factor"]
        for i, guard in enumerate(self._guards):
            guard.load_state(parts.get(f"guard_{i}", {}))
