"""What a run measures, and everything that shows it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_hpc.lazy_names import lazy_names

if TYPE_CHECKING:
    from verl_hpc.metrics.exporter import MetricsExporter as MetricsExporter
else:
    # It needs prometheus_client, which is asked for where somebody wants it.
    __getattr__, __dir__ = lazy_names(__name__, {"MetricsExporter": "verl_hpc.metrics.exporter"})
