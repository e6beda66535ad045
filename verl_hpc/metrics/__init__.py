"""Metrics of a run, and the sinks, pages and files that show them."""

from verl_hpc.tutorial_names import lazy_names

# The exporter needs prometheus_client, which is imported only where a script asks for it.
__getattr__, __dir__ = lazy_names(__name__, MetricsExporter="verl_hpc.metrics.exporter")
