"""What takes a trainer's metrics, as a sink of the house."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from verl_hpc.errors import ConfigError
from verl_hpc.metrics.sinks import Sink

Exports = Callable[[int, Mapping[str, float]], Any]


@runtime_checkable
class TakesName(Protocol):
    """An exporter whose metrics have names of their own."""

    def named(self, run: str) -> None:
        """Tell them from another run's; an empty name is none.

        Raises:
            ConfigError: they are of another run.
        """


@runtime_checkable
class KnowsTasks(Protocol):
    """An exporter that tells tasks apart in its own way."""

    def by_task(self) -> None:
        """Metrics are of several tasks.

        Raises:
            ConfigError: it was told of others.
        """


def sink_of(exporter: Any, namespace: str = "", by_task: bool = False) -> Sink:
    """An object with `write(step, metrics)`, or a function that is called so.

    Args:
        namespace: what names of metrics begin with, if not empty.
        by_task: metrics are of several tasks, `task/NAME/...`.

    Raises:
        ConfigError: it is neither, or belongs to another trainer.
    """
    writes = callable(getattr(exporter, "write", None))
    if not writes and not callable(exporter):
        raise ConfigError(
            f"add_metrics_exporter: {type(exporter).__name__} has no write(step, metrics), and "
            "cannot be called"
        )
    if by_task and isinstance(exporter, KnowsTasks):
        exporter.by_task()
    if isinstance(exporter, TakesName):
        exporter.named(namespace)
    elif namespace:
        write = exporter.write if writes else exporter
        return _Called(lambda step, values: write(step, _below(namespace, values)))
    return exporter if writes else _Called(exporter)


def _below(namespace: str, values: Mapping[str, float]) -> dict[str, float]:
    return {f"{namespace}/{name}": value for name, value in values.items()}


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
