"""Fan out to the metric sinks that a run's configuration names."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from rich.console import Console

from verl_hpc.config.trackers import MetricsConfig, PrometheusConfig, check_trackers
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.terminal import LineView, LiveView
from verl_hpc.runtime import terminal
from verl_hpc.tracker import Sink, TrackedRun, Tracker

_logger = logging.getLogger(__name__)


class Sinks(AbstractContextManager["Sinks"]):
    """Passes everything on to each sink that takes it. A sink that fails is logged and dropped: a
    full quota or a closed terminal must not end a run whose metrics.jsonl is intact.

    A context manager that closes them, which restores the terminal after an error.
    """

    def __init__(self, sinks: Iterable[Sink]) -> None:
        self._sinks = list(sinks)

    def add(self, sink: Sink) -> None:
        """Add a sink from now on."""
        self._sinks.append(sink)

    def stage(self, name: str) -> None:
        self._each("stage", name)

    def rewards(self, values: Iterable[float], task: str = "") -> None:
        self._each("rewards", values, task)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._each("write", step, values)

    def close(self) -> None:
        self._each("close")

    def _each(self, event: str, *arguments: Any) -> None:
        for sink in tuple(self._sinks):
            try:
                if hasattr(sink, event):
                    getattr(sink, event)(*arguments)
            except Exception as error:
                self._sinks.remove(sink)
                with contextlib.suppress(Exception):
                    sink.close()
                _logger.warning("%s is dropped: %r", type(sink).__name__, error)

    def __exit__(self, *error: object) -> None:
        self.close()


def check_sinks(config: MetricsConfig, leads: bool) -> None:
    """Check before any work that the sinks can be opened.

    Args:
        leads: whether this rank opens them.

    Raises:
        ConfigError: for the reasons of `open_sinks`.
    """
    check_trackers(config)
    if leads and config.prometheus is not None and config.prometheus.port is not None:
        from verl_hpc.metrics.exporter import check_port

        check_port(config.prometheus.port)


def open_sinks(
    config: MetricsConfig,
    run_directory: Path,
    total_steps: int,
    *,
    recipe: str = "",
    resumed_from: int | None = None,
    settings: Mapping[str, Any] | None = None,
) -> Sinks:
    """Open the sinks that `config` names. Belongs to rank 0.

    Args:
        run_directory: has the trackers' files; its name is the run's.
        total_steps: step at which the run is done.
        recipe: shown next to the run's name.
        resumed_from: step of the checkpoint that training resumes from.
        settings: settings of the whole run, which trackers keep with its metrics.

    Raises:
        ConfigError: a sink needs a package that is not installed, or a port that is taken.
    """
    check_trackers(config)
    tracked = TrackedRun(run_directory, resumed_from, settings or {})
    sinks = [_opened(name, tracker, tracked) for name, tracker in config.trackers.items()]
    mode = config.terminal
    if mode == "auto":
        mode = "live" if terminal.is_terminal() else "lines"
    if mode == "lines":
        sinks.append(LineView(total_steps, terminal.columns()))
    if mode == "live":
        title = f"{run_directory.name}  {recipe}"
        # Under mpiexec a rank's stdout is a pipe even where a terminal is at its other end.
        width = None if sys.stdout.isatty() else terminal.columns()
        console = Console(force_terminal=True, width=width)
        sinks.append(LiveView(console, title, total_steps, resumed_from or 0))
    return Sinks(sinks)


def _opened(name: str, tracker: Tracker, run: TrackedRun) -> Sink:
    if isinstance(tracker, PrometheusConfig):
        from verl_hpc.metrics.exporter import MetricsExporter

        exporter = MetricsExporter.of(tracker, run.directory.name)
        if run.settings.get("tasks"):
            exporter.by_task()
        return exporter
    try:
        return tracker.open(run)
    except ImportError as error:
        raise ConfigError(
            f"metrics.{name}: {error}; pip install 'verl_hpc[track]', or leave metrics.{name} out"
        ) from None
