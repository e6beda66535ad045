"""Hold a step's metrics under Prometheus's names, without any network.

Metrics of metrics.jsonl are gauges (`actor/grad_norm` is `verl_actor_grad_norm`), except these:

    verl_operator_latency_seconds{operator=}  histogram of timing_s/
    verl_operator_cpu_seconds{operator=}      gauge of cpu_s/
    verl_step_latency_seconds                 histogram of whole steps
    verl_rollout_latency_seconds              histogram of the operator rollout
    verl_reward                               histogram of the scores of all responses, without a
                                              sum, since scores may be negative
    verl_kl_divergence{to=}                   gauge: reference, old_policy or teacher
    verl_gpu_memory_used_bytes                gauge: of the fullest GPU; none on CPU ranks
    verl_step                                 gauge: the last step that is done

All have a label `run` if the run has a name: neither the port's address nor the node exporter's
distinguishes two runs on a node.

If several tasks train one actor (`task/NAME/...`), these and the gauges also have a label `task`:
`task/solve/actor/grad_norm` is `verl_actor_grad_norm{task="solve"}`.

Histograms cover this start of the run: Prometheus recognises a restart as a counter that begins
again. A percentile is `histogram_quantile(0.95, rate(verl_..._bucket[1h]))`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Gauge, Histogram

from verl_hpc.errors import ConfigError
from verl_hpc.metrics.names import (
    CPU,
    GPU_MEMORY_USED,
    OLD_POLICY_KL,
    REFERENCE_KL,
    REFERENCE_KL_PENALTY,
    STEP_SECONDS,
    TEACHER_REVERSE_KL,
    TIMING,
)

PREFIX = "verl_"
_GIB = 2**30
_SECONDS = (
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 20, 30, 60, 120, 300, 600),
    *(1200, 1800, 3600, 7200),
)
"""Upper ends of buckets, from an operator of a tiny model to a step of hours."""
_REWARDS = (-10, -5, -2, -1, -0.5, -0.2, *(tenths / 10 for tenths in range(10)), 1, 2, 5, 10)
_KL = {
    REFERENCE_KL: "reference",
    REFERENCE_KL_PENALTY: "reference",
    OLD_POLICY_KL: "old_policy",
    TEACHER_REVERSE_KL: "teacher",
}
_ROLLOUT = TIMING + "rollout"
_M = TypeVar("_M", Gauge, Histogram)


class PrometheusMetrics:
    """Registry of one run's metrics.

    Args:
        run: label `run` of all metrics; no label if empty.
    """

    def __init__(self, run: str = "") -> None:
        self.registry = CollectorRegistry()
        self._run, self._by_task, self._told = run, False, False
        self._is_named = bool(run)
        self._begin()

    def named(self, run: str) -> None:
        """Give all metrics a label `run`, or none if it is empty, before the first values.

        Raises:
            ConfigError: they have another label, or have values without one.
        """
        if run != self._run:
            if self._is_named or self._told:
                raise ConfigError(
                    f"MetricsExporter: its metrics have {_label(self._run)}, and those of this "
                    f"trainer have {_label(run)}; make another MetricsExporter for it"
                )
            self._run = run
            self._begin_again()
        self._is_named = True

    def by_task(self) -> None:
        """Give all metrics but the step a label `task`, before the first values.

        Raises:
            ConfigError: they have values without it.
        """
        if self._by_task:
            return
        if self._told:
            raise ConfigError(
                "MetricsExporter: it has told of metrics without the label task, which those of "
                "several tasks have; make another MetricsExporter for this trainer"
            )
        self._by_task = True
        self._begin_again()

    def _begin_again(self) -> None:
        for one in (self._operators, self._steps, *self._fixed.values()):
            self.registry.unregister(one)
        self._begin()

    def _begin(self) -> None:
        self._operators = self._histogram(
            "operator_latency_seconds", "Seconds of an operator in a step", _SECONDS, "operator"
        )
        self._steps = self._histogram("step_latency_seconds", "Seconds of a step", _SECONDS)
        self._rollout: Histogram | None = None
        self._rewards: Histogram | None = None
        self._gauges: dict[str, Gauge] = {}
        """Gauges by the metric's name in metrics.jsonl."""
        self._taken = {PREFIX + "operator_latency_seconds", PREFIX + "step_latency_seconds"}
        # Metrics with fixed names come first, so that no other metric can take one.
        self._fixed = {
            "step": self._gauge("step", "The last step that is done", has_task=False),
            "kl": self._gauge("kl_divergence", "KL divergence, nats a token", "to"),
            "cpu": self._gauge("operator_cpu_seconds", "CPU seconds of an operator", "operator"),
        }
        more = ("rollout_latency_seconds", "reward", "gpu_memory_used_bytes")
        self._taken |= {PREFIX + name for name in more}

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take a finished step.

        Args:
            values: by their names in metrics.jsonl; NaN and infinities are kept as such.
        """
        self._told = True
        self._at(self._fixed["step"], None).set(step)
        for name, value in values.items():
            self._take(*self._task_of(name), value)

    def _task_of(self, name: str) -> tuple[str, str]:
        """Split a metric's name into task and rest; the task is empty if it has none."""
        if self._by_task and name.startswith("task/"):
            task, slash, rest = name.removeprefix("task/").partition("/")
            if slash:
                return task, rest
        return "", name

    def _take(self, task: str, name: str, value: float) -> None:
        if name in _KL:
            self._at(self._fixed["kl"], task, _KL[name]).set(value)
        if name == GPU_MEMORY_USED:
            self._at(self._of(name, "gpu_memory_used_bytes"), task).set(value * _GIB)
        elif name == STEP_SECONDS:
            self._at(self._steps, task).observe(value)
        elif name.startswith(TIMING):
            self._at(self._operators, task, name.removeprefix(TIMING)).observe(value)
        elif name.startswith(CPU):
            self._at(self._fixed["cpu"], task, name.removeprefix(CPU)).set(value)
        else:
            self._at(self._of(name), task).set(value)
        if name == _ROLLOUT:
            if self._rollout is None:
                text = "Seconds of generation in a step"
                self._rollout = self._histogram("rollout_latency_seconds", text, _SECONDS)
            self._at(self._rollout, task).observe(value)

    def rewards(self, values: Iterable[float], task: str = "") -> None:
        """Take the scores of all responses of a step."""
        self._told = True
        if self._rewards is None:
            self._rewards = self._histogram("reward", "Scores of responses", _REWARDS)
        for value in values:
            self._at(self._rewards, task).observe(value)

    def _at(self, metric: _M, task: str | None, *labels: str) -> _M:
        """Return the metric with these labels; `task` is None for metrics without that label."""
        if self._by_task and task is not None:
            labels = (task, *labels)
        if self._run:
            labels = (self._run, *labels)
        return metric.labels(*labels) if labels else metric

    def _histogram(self, name: str, text: str, buckets: Sequence[float], *labels: str) -> Histogram:
        return Histogram(
            PREFIX + name, text, self._labels(labels), buckets=buckets, registry=self.registry
        )

    def _labels(self, labels: Sequence[str], has_task: bool = True) -> tuple[str, ...]:
        run = ("run",) if self._run else ()
        task = ("task",) if self._by_task and has_task else ()
        return (*run, *task, *labels)

    def _of(self, metric: str, name: str | None = None) -> Gauge:
        if metric not in self._gauges:
            if name is None:
                name = sane = re.sub(r"[^a-zA-Z0-9_]+", "_", metric).strip("_") or "unnamed"
                number = 2
                while PREFIX + name in self._taken:
                    name, number = f"{sane}_{number}", number + 1
            self._gauges[metric] = self._gauge(name, metric)
        return self._gauges[metric]

    def _gauge(self, name: str, text: str, *labels: str, has_task: bool = True) -> Gauge:
        self._taken.add(PREFIX + name)
        of = self._labels(labels, has_task)
        return Gauge(PREFIX + name, text, of, registry=self.registry)


def _label(run: str) -> str:
    return f"the label run = {run!r}" if run else "no label run"
