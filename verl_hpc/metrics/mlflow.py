"""Log to MLflow's store of files in the run directory."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path

from verl_hpc.config.trackers import MlflowConfig
from verl_hpc.runtime import environment

DIRECTORY = "mlflow"
"""Directory below the run directory."""


class Mlflow:
    """Logs each start of a run as a run in RUN/mlflow.

    It writes files, not the database that MLflow prefers: SQLite's locks are slow or missing on the
    parallel file systems of run directories. `mlflow migrate-filestore` converts them.
    """

    def __init__(self, config: MlflowConfig, run_directory: Path) -> None:
        """Begin a run named after the run directory."""
        environment.prepare_trackers()
        from mlflow.tracking import MlflowClient

        store = (run_directory / DIRECTORY).resolve()
        self._client = MlflowClient(tracking_uri=store.as_uri())
        known = self._client.get_experiment_by_name(config.experiment)
        if known is None:
            experiment = self._client.create_experiment(config.experiment)
        else:
            experiment = known.experiment_id
        self._run = self._client.create_run(experiment, run_name=run_directory.name).info.run_id

    def stage(self, name: str) -> None:
        """Ignore stages: MLflow gets finished steps only."""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
