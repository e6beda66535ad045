"""Receivers of a trainer's metrics, as sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verl_hpc.errors import ConfigError
from verl_hpc.tracker import Sink

Exports = Callable[[int, Mapping[str, float]], Any]


def sink_of(exporter: Any, namespace: str | None) -> Sink:
    """Return an object with `write(step, metrics)`, or a function that is called so, as a sink.

    Args:
        namespace: what names of metrics begin with; a `MetricsExporter` has it as a label.

    Raises:
        ConfigError: it is neither, or belongs to another trainer.
    """
    write = getattr(exporter, "write", exporter)
    if not callable(write):
        raise ConfigError(
            f"add_metrics_exporter: {type(exporter).__name__} has no write(step, metrics), and "
            "cannot be called"
        )
    has_label = hasattr(exporter, "named")
    if has_label:
        exporter.named(namespace or "")
    if write is not exporter and (has_label or not namespace):
        sink: Sink = exporter
        return sink
    return _Called(write, f"{namespace}/" if namespace else "")


class _Called:
    """A function as a sink, which is given names behind a prefix."""

    def __init__(self, function: Exports, prefix: str) -> None:
        self._function, self._prefix = function, prefix

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._function(step, {f"{self._prefix}{name}": value for name, value in values.items()})

    def close(self) -> None:
        """Do nothing: no resource is held."""
