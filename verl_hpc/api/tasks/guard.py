"""A guard of metrics: training goes back where one gets much worse."""

from __future__ import annotations

import logging
import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from verl_hpc.api.tasks.state import joined, split
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import ConfigError

_logger = logging.getLogger(__name__)
Better = Literal["max", "min"]


@dataclass(frozen=True)
class MetricDrop:
    """A monitored metric that got worse than is allowed."""

    metric: str
    value: float
    best: float
    """That it is measured against."""
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
    """What was done about it."""

    fall: MetricDrop
    to_step: int
    """Whose weights, optimizers and counters training has now."""
    seed: int
    """Of the samples from now on."""
    lr_factor: float
    """That learning rates are multiplied with from now on."""

    def __str__(self) -> str:
        return (
            f"{self.fall}; went back to the checkpoint of step {self.to_step}, and goes on with "
            f"seed {self.seed} and learning rates times {self.lr_factor:g}"
        )


Alert = Callable[[Rollback], bool | None]
"""Told of a rollback, while training is paused; False ends training there."""


def log_alert(rollback: Rollback) -> None:
    """The default: a line of the log."""
    _logger.warning("SafetyGuard: %s", rollback)


class SafetyGuard:
    """Goes back to an earlier checkpoint when a monitored metric gets much worse.

    After a step whose metric is worse than the best so far (or its baseline) by more than
    `threshold_delta`, training pauses: weights, optimizers and counters become those of the newest
    checkpoint that is at least `rollback_steps` steps old (early on, of the oldest there is),
    `alert` is called, and training goes on from there. So that it does not fall the same way again,
    samples are drawn with another seed, and all learning rates are multiplied with `lr_factor`,
    once more at each rollback. A logit, reward, loss or gradient that is not finite, of a task of
    which something is monitored, is such a fall, too.

    Args:
        monitor_metrics: names of metrics, such as task/NAME/reward, where higher is better; or a
            mapping from names to max or min, which is better.
        threshold_delta: how much worse is allowed, in the metric's unit.
        rollback_steps: at least so many steps back.
        alert: called with the `Rollback`.
        baseline: by metric, what it is measured against in place of its best so far.
        window: so many of its newest values are averaged before they are compared.
        lr_factor: as above; 1 leaves learning rates as they are.
        max_rollbacks: the next one is an error; a fall that comes back is not a matter of chance.

    Raises:
        ConfigError: a value that is not allowed.
    """

    @checked
    def __init__(
        self,
        monitor_metrics: str | Sequence[str] | Mapping[str, Any],
        threshold_delta: float,
        rollback_steps: int,
        alert: Alert = log_alert,
        baseline: Mapping[str, float] | None = None,
        window: int = 1,
        lr_factor: float = 0.5,
        max_rollbacks: int = 3,
    ) -> None:
        if isinstance(monitor_metrics, str):
            monitor_metrics = [monitor_metrics]
        named = isinstance(monitor_metrics, Mapping)
        self.metrics: dict[str, Better] = (
            dict(monitor_metrics)  # type: ignore[arg-type]
            if named
            else dict.fromkeys(monitor_metrics, "max")
        )
        self.threshold_delta, self.rollback_steps = threshold_delta, rollback_steps
        self.alert, self.baseline, self.window = alert, dict(baseline or {}), window
        self.lr_factor, self.max_rollbacks = lr_factor, max_rollbacks
        self._check()
        self._best: dict[str, float] = {}
        self._newest: dict[str, deque[float]] = {n: deque(maxlen=window) for n in self.metrics}

    def _check(self) -> None:
        wrong = {
            "monitor_metrics": (not self.metrics, "name at least one"),
            "threshold_delta": (
                not (math.isfinite(self.threshold_delta) and self.threshold_delta >= 0),
                "must be finite and at least 0",
            ),
            "rollback_steps": (self.rollback_steps < 1, "must be at least 1"),
            "window": (self.window < 1, "must be at least 1"),
            "lr_factor": (not 0 < self.lr_factor <= 1, "must be above 0 and at most 1"),
            "max_rollbacks": (self.max_rollbacks < 1, "must be at least 1"),
            "alert": (not callable(self.alert), "must be a function of one argument"),
        }
        for name, (is_wrong, why) in wrong.items():
            if is_wrong:
                value = list(self.metrics) if name == "monitor_metrics" else getattr(self, name)
                raise ConfigError(f"SafetyGuard: {name} = {value}: {why}")
        for name, better in self.metrics.items():
            if better not in ("max", "min"):
                raise ConfigError(f"SafetyGuard: monitor_metrics[{name!r}] = {better}: max or min")
        for name in self.baseline:
            if name not in self.metrics:
                raise ConfigError(f"SafetyGuard: baseline[{name!r}]: not one of monitor_metrics")
            if not math.isfinite(self.baseline[name]):  # nothing would be a fall
                value = self.baseline[name]
                raise ConfigError(f"SafetyGuard: baseline[{name!r}] = {value}: must be finite")

    def look(self, step: int, metrics: Mapping[str, float]) -> MetricDrop | None:
        """Take notice of a step's metrics; the first that fell too far, if one did.

        A metric that the step has not is passed over; NaN and infinity fall too far at once.
        """
        for name, better in self.metrics.items():
            if name not in metrics:
                continue
            newest, sign = self._newest[name], 1.0 if better == "max" else -1.0
            newest.append(metrics[name])
            if not math.isfinite(metrics[name]):
                return MetricDrop(name, metrics[name], self._reference(name, metrics[name]), step)
            if len(newest) < self.window:
                continue
            value = math.fsum(newest) / len(newest)
            best = self._reference(name, value)
            if sign * (best - value) > self.threshold_delta:
                return MetricDrop(name, value, best, step)
            if sign * (value - self._best.get(name, value)) >= 0:
                self._best[name] = value
        return None

    def not_finite(self, step: int, prefix: str, reason: str) -> MetricDrop | None:
        """Take notice of a step that could not be taken, if anything of the prefix is monitored."""
        for name in self.metrics:
            if name.startswith(prefix):
                return MetricDrop(name, math.nan, self._reference(name, math.nan), step, reason)
        return None

    def check_names(self, prefix: str, metrics: Mapping[str, float]) -> None:
        """Raises: ConfigError: what is monitored of a prefix is not among the metrics."""
        for name in self.metrics:
            if name.startswith(prefix) and name not in metrics:
                known = [metric for metric in metrics if metric.startswith(prefix)]
                raise ConfigError(
                    f"SafetyGuard: monitor_metrics: no metric is called {name}; "
                    f"{near_or_all(name, known)}"
                )

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
