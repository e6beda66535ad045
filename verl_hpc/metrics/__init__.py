"""What a run measures, and everything that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verl_hpc.metrics.exporter import MetricsExporter

__all__ = ["MetricsExporter"]


def __getattr__(name: str) -> Any:
    """The exporter needs prometheus_client, which is asked for where somebody wants it."""
    if name != "MetricsExporter":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from verl_hpc.metrics.exporter import MetricsExporter

    return MetricsExporter
