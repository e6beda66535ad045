"""MLflow's store of files in the run directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from verl_hpc.config.trackers import MlflowConfig
from verl_hpc.runtime import environment

DIRECTORY = "mlflow"
"""Below the run directory."""


class Mlflow:
    """A run in RUN/mlflow for each start of a run.

    Files, and no database, which MLflow prefers: SQLite's locks are slow or missing on the parallel
    file systems that run directories are on. `mlflow migrate-filestore` makes a database of them.
    """

    def __init__(self, config: MlflowConfig, run_directory: Path) -> None:
        """Begin a run of the run directory's name."""
        environment.prepare_trackers()
        from mlflow.tracking import MlflowClient

        store = (run_directory / DIRECTORY).resolve()
        self._client = MlflowClient(tracking_uri=store.as_uri())
        found = self._client.get_experiment_by_name(config.experiment)
        if found is None:
            experiment = self._client.create_experiment(config.experiment)
        else:
            experiment = found.experiment_id
        self._run = self._client.create_run(experiment, run_name=run_directory.name).info.run_id

    def stage(self, name: str) -> None:
        """Runs of MLflow have finished steps only."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
