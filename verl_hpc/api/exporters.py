"""What takes a trainer's metrics, as a sink of the house."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from verl_hpc.errors import ConfigError
from verl_hpc.metrics.sinks import Sink

Exports = Callable[[int, Mapping[str, float]], Any]


def sink_of(exporter: Any) -> Sink:
    """An object with `write(step, metrics)`, or a function that is called so.

    Raises:
        ConfigError: it is neither.
    """
    if callable(getattr(exporter, "write", None)):
        return exporter  # type: ignore[no-any-return]
    if callable(exporter):
        return _Called(exporter)
    raise ConfigError(
        f"add_metrics_exporter: {type(exporter).__name__} has no write(step, metrics), and cannot "
        "be called"
    )


class _Called:
    """A function as a sink."""

    def __init__(self, function: Exports) -> None:
        self._function = function

    def stage(self, name: str) -> None:
        """Not told."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._function(step, values)

    def close(self) -> None:
        """Holds nothing."""
