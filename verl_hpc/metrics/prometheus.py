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
from functools import partial
from typing import Any

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
_TEXTS = {
    "operator_latency_seconds": "Seconds of an operator in a step",
    "operator_cpu_seconds": "CPU seconds of an operator",
    "step_latency_seconds": "Seconds of a step",
    "rollout_latency_seconds": "Seconds of generation in a step",
    "reward": "Scores of responses",
    "kl_divergence": "KL divergence, nats a token",
    "gpu_memory_used_bytes": GPU_MEMORY_USED,
    "step": "The last step that is done",
}
"""Metrics with names of their own, which no other metric can take."""


class PrometheusMetrics:
    """Registry of one run's metrics, each of which is made at its first value.

    Args:
        run: label `run` of all metrics; no label if empty.
    """

    def __init__(self, run: str = "") -> None:
        self.registry = CollectorRegistry()
        self.run, self._is_named, self._by_task = run, bool(run), False
        self._metrics: dict[str, Any] = {}
        """Gauges and histograms by name."""
        self._names: dict[str, str] = {}
        """Names by those in metrics.jsonl."""

    def named(self, run: str) -> None:
        """Give all metrics a label `run`, or none if it is empty, before the first values.

        Raises:
            ConfigError: they have another label, or have values without one.
        """
        if run != self.run and (self._is_named or self._metrics):
            raise ConfigError(
                f"MetricsExporter: its metrics have {_label(self.run)}, and those of this "
                f"trainer have {_label(run)}; make another MetricsExporter for it"
            )
        self.run, self._is_named = run, True

    def by_task(self) -> None:
        """Give all metrics but the step a label `task`, before the first values.

        Raises:
            ConfigError: they have values without it.
        """
        if self._metrics and not self._by_task:
            raise ConfigError(
                "MetricsExporter: it has told of metrics without the label task, which those of "
                "several tasks have; make another MetricsExporter for this trainer"
            )
        self._by_task = True

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take a finished step.

        Args:
            values: by their names in metrics.jsonl; NaN and infinities are kept as such.
        """
        self._metric("step", None).set(step)
        for name, value in values.items():
            self._take(*self._task_of(name), value)

    def rewards(self, values: Iterable[float], task: str = "") -> None:
        """Take the scores of all responses of a step."""
        histogram = self._metric("reward", task, buckets=_REWARDS)
        for value in values:
            histogram.observe(value)

    def _task_of(self, name: str) -> tuple[str, str]:
        """Split a metric's name into task and rest; the task is empty if it has none."""
        if self._by_task and name.startswith("task/"):
            task, slash, rest = name.removeprefix("task/").partition("/")
            if slash:
                return task, rest
        return "", name

    def _take(self, task: str, name: str, value: float) -> None:
        if name in _KL:
            self._metric("kl_divergence", task, to=_KL[name]).set(value)
        if name == TIMING + "rollout":
            self._metric("rollout_latency_seconds", task, buckets=_SECONDS).observe(value)
        if name == GPU_MEMORY_USED:
            self._metric("gpu_memory_used_bytes", task).set(value * _GIB)
        elif name == STEP_SECONDS:
            self._metric("step_latency_seconds", task, buckets=_SECONDS).observe(value)
        elif name.startswith(TIMING):
            operator = name.removeprefix(TIMING)
            seconds = self._metric("operator_latency_seconds", task, _SECONDS, operator=operator)
            seconds.observe(value)
        elif name.startswith(CPU):
            operator = name.removeprefix(CPU)
            self._metric("operator_cpu_seconds", task, operator=operator).set(value)
        else:
            self._metric(self._name(name), task).set(value)

    def _metric(
        self, name: str, task: str | None, buckets: Sequence[float] = (), **labels: str
    ) -> Any:
        """Return the metric with these labels; `task` is None for a metric without that label."""
        if self._by_task and task is not None:
            labels = {"task": task} | labels
        if self.run:
            labels = {"run": self.run} | labels
        if name not in self._metrics:
            text = _TEXTS.get(name) or next(n for n, ours in self._names.items() if ours == name)
            kind = partial(Histogram, buckets=buckets) if buckets else Gauge
            self._metrics[name] = kind(PREFIX + name, text, [*labels], registry=self.registry)
        metric = self._metrics[name]
        return metric.labels(**labels) if labels else metric

    def _name(self, metric: str) -> str:
        """Return the name of a metric of metrics.jsonl, which no other one has."""
        if metric not in self._names:
            name = sane = re.sub(r"[^a-zA-Z0-9_]+", "_", metric).strip("_") or "unnamed"
            number = 2
            while name in _TEXTS or name in self._names.values():
                name, number = f"{sane}_{number}", number + 1
            self._names[metric] = name
        return self._names[metric]


def _label(run: str) -> str:
    return f"the label run = {run!r}" if run else "no label run"
