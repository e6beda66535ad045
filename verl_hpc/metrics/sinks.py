"""Fan out to the metric sinks that a run's configuration names."""

from __future__ import annotations

import contextlib
import logging
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol, Self

from rich.console import Console

from verl_hpc.config.trackers import MetricsConfig, check_trackers
from verl_hpc.metrics.terminal import LineView, LiveView
from verl_hpc.metrics.trackers import Mlflow, Swanlab, TensorBoard, Wandb
from verl_hpc.runtime import terminal

_logger = logging.getLogger(__name__)


class Sink(Protocol):
    """A destination of a run's metrics besides metrics.jsonl. Values may be NaN or infinite.

    It may also have `stage(name)`, which is called when an operator begins, many times a second,
    and `rewards(values, task)`, which gets the scores of all responses of a step, or of a task in
    it, before its `write`.
    """

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the metrics of a finished step."""

    def close(self) -> None:
        """Release all resources; no call follows."""


class Sinks:
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

    def __enter__(self) -> Self:
        return self

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
        run_directory: TensorBoard's files go to its `tensorboard`; its name is the run's.
        total_steps: step at which the run is done.
        recipe: shown next to the run's name.
        resumed_from: step of the checkpoint that training resumes from.
        settings: settings of the whole run, which trackers keep with its metrics.

    Raises:
        ConfigError: a sink needs a package that is not installed, or a port that is taken.
    """
    check_trackers(config)
    sinks = _trackers(config, run_directory, resumed_from, settings)
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


def _trackers(
    config: MetricsConfig,
    run_directory: Path,
    resumed_from: int | None,
    settings: Mapping[str, Any] | None,
) -> list[Sink]:
    sinks: list[Sink] = []
    if config.tensorboard:
        sinks.append(TensorBoard(run_directory / "tensorboard", resumed_from))
    if config.prometheus is not None:
        from verl_hpc.metrics.exporter import MetricsExporter

        exporter = MetricsExporter.of(config.prometheus, run_directory.name)
        if (settings or {}).get("tasks"):
            exporter.by_task()
        sinks.append(exporter)
    if config.wandb is not None:
        sinks.append(Wandb(config.wandb, run_directory, settings))
    if config.mlflow is not None:
        sinks.append(Mlflow(config.mlflow, run_directory))
    if config.swanlab is not None:
        sinks.append(Swanlab(config.swanlab, run_directory, settings))
    return sinks
