"""A step's metrics under Prometheus's names. Nothing here talks to a network.

Metrics of metrics.jsonl are gauges, `actor/grad_norm` is `verl_actor_grad_norm`, but for these:

    verl_operator_latency_seconds{operator=}  histogram of timing_s/; an inner one is outer/inner
    verl_operator_cpu_seconds{operator=}      gauge of cpu_s/
    verl_step_latency_seconds                 histogram of whole steps
    verl_rollout_latency_seconds              histogram of the operator rollout
    verl_reward                               histogram of the scores of all responses, without a
                                              sum, since scores may be negative
    verl_kl_divergence{to=}                   gauge: reference, old_policy or teacher
    verl_gpu_memory_used_bytes                gauge: of rank 0's GPU; none on CPU ranks
    verl_step                                 gauge: the last step that is done

Histograms are of this start of the run: Prometheus takes a restart for what it is, a counter that
begins again. A percentile is `histogram_quantile(0.95, rate(verl_..._bucket[1h]))`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from prometheus_client import CollectorRegistry, Gauge, Histogram

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
"""Upper ends of buckets: from an operator of a tiny model to a step of hours."""
_REWARDS = (
    -10,
    -5,
    -2,
    -1,
    -0.5,
    -0.2,
    0,
    0.1,
    0.2,
    0.3,
    0.4,
    0.5,
    0.6,
    0.7,
    0.8,
    0.9,
    1,
    2,
    5,
    10,
)
_KL = {
    REFERENCE_KL: "reference",
    REFERENCE_KL_PENALTY: "reference",
    OLD_POLICY_KL: "old_policy",
    TEACHER_REVERSE_KL: "teacher",
}
_ROLLOUT = TIMING + "rollout"


class PrometheusMetrics:
    """A registry of one run."""

    def __init__(self) -> None:
        self.registry = registry = CollectorRegistry()
        self._operators = Histogram(
            PREFIX + "operator_latency_seconds",
            "Seconds of an operator in a step",
            ["operator"],
            buckets=_SECONDS,
            registry=registry,
        )
        self._steps = Histogram(
            PREFIX + "step_latency_seconds",
            "Seconds of a step",
            buckets=_SECONDS,
            registry=registry,
        )
        self._rollout: Histogram | None = None
        self._rewards: Histogram | None = None
        self._gauges: dict[str, Gauge] = {}
        """By the metric's name in metrics.jsonl."""
        self._taken = {PREFIX + "operator_latency_seconds", PREFIX + "step_latency_seconds"}
        # What has fixed names comes first, so that no other metric can have one of them.
        self._fixed = {
            "step": self._gauge("step", "The last step that is done"),
            "kl": self._gauge("kl_divergence", "KL divergence, nats a token", "to"),
            "cpu": self._gauge("operator_cpu_seconds", "CPU seconds of an operator", "operator"),
        }
        self._taken |= {PREFIX + n for n in ("rollout_latency_seconds", "reward")}
        self._taken.add(PREFIX + "gpu_memory_used_bytes")

    def step(self, step: int, values: Mapping[str, float]) -> None:
        """Take a finished step.

        Args:
            values: by their names in metrics.jsonl; NaN and infinities are kept as such.
        """
        self._fixed["step"].set(step)
        for name, value in values.items():
            if name in _KL:
                self._fixed["kl"].labels(_KL[name]).set(value)
            if name == GPU_MEMORY_USED:
                self._of(name, "gpu_memory_used_bytes").set(value * _GIB)
            elif name == STEP_SECONDS:
                self._steps.observe(value)
            elif name.startswith(TIMING):
                self._operators.labels(name.removeprefix(TIMING)).observe(value)
            elif name.startswith(CPU):
                self._fixed["cpu"].labels(name.removeprefix(CPU)).set(value)
            else:
                self._of(name).set(value)
        if _ROLLOUT in values:
            self._rollout = self._rollout or Histogram(
                PREFIX + "rollout_latency_seconds",
                "Seconds of generation in a step",
                buckets=_SECONDS,
                registry=self.registry,
            )
            self._rollout.observe(values[_ROLLOUT])

    def rewards(self, values: Iterable[float]) -> None:
        """Take the scores of all responses of a step."""
        self._rewards = self._rewards or Histogram(
            PREFIX + "reward", "Scores of responses", buckets=_REWARDS, registry=self.registry
        )
        for value in values:
            self._rewards.observe(value)

    def _of(self, metric: str, name: str | None = None) -> Gauge:
        if metric not in self._gauges:
            if name is None:
                name = sane = re.sub(r"[^a-zA-Z0-9_]+", "_", metric).strip("_") or "unnamed"
                number = 2
                while PREFIX + name in self._taken:
                    name, number = f"{sane}_{number}", number + 1
            self._gauges[metric] = self._gauge(name, metric)
        return self._gauges[metric]

    def _gauge(self, name: str, text: str, *labels: str) -> Gauge:
        self._taken.add(PREFIX + name)
        return Gauge(PREFIX + name, text, labels, registry=self.registry)
