"""Where the metrics of a training of several tasks go."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path

from verl_hpc.api.exporters import Exports, sink_of
from verl_hpc.api.tasks.settings import TasksConfig
from verl_hpc.api.tasks.task import Task
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.sinks import Sink, Sinks

_logger = logging.getLogger(__name__)
TASKS = "tasks.yaml"
"""In the directory of a training: everything decided."""


class Records:
    """metrics.jsonl, exporters, and a line of the log for every task.

    Args:
        config: of the tasks.
        directory: of metrics.jsonl; made before the first step is written.
        namespace: that exporters are told.
        tasks: by name.
    """

    def __init__(
        self, config: TasksConfig, directory: Path, namespace: str, tasks: Mapping[str, Task]
    ) -> None:
        self._config, self._directory = config, directory
        self._namespace, self._tasks = namespace, tasks
        self._sinks = Sinks([])
        self._log: MetricsLog | None = None

    def add(self, exporter: Sink | Exports) -> None:
        """See `Trainer.add_metrics_exporter`."""
        self._sinks.add(sink_of(exporter, self._namespace, by_task=True))

    def write(
        self, step: int, metrics: Mapping[str, float], num_prompts: Mapping[str, int]
    ) -> None:
        """Tell a step.

        Args:
            num_prompts: of each task that took part.
        """
        if self._log is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._log = MetricsLog(self._directory, step - 1)
            (self._directory / TASKS).write_text(write_yaml(self._config.tree()), encoding="utf-8")
        self._log.write(step, metrics)
        for name in num_prompts:
            self._sinks.rewards(self._tasks[name].scores, name)
        self._sinks.write(step, metrics)
        for name, number in num_prompts.items():
            of = {key: metrics[f"task/{name}/{key}"] for key in ("reward", "tokens_per_second")}
            text = "step %s %s: %s prompts, reward %.4g, %.0f tokens/s"
            _logger.info(text, step, name, number, *of.values())
