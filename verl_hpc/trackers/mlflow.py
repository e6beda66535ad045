"""MLflow.

It writes files, not the database that MLflow prefers: SQLite's locks are slow or missing on the
parallel file systems of run directories. `mlflow migrate-filestore` converts them.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from verl_hpc.tracker import Label, Sink, TrackedRun, Tracker, set_defaults


class Mlflow(Tracker):
    """MLflow's store of files, in RUN/mlflow; each start of a run is a run in it."""

    module = "mlflow"
    package = "mlflow-skinny"
    experiment: Label = "verl_hpc"
    """Experiment that the runs belong to."""

    def open(self, run: TrackedRun) -> Sink:
        """Begin a run named after the run directory."""
        set_defaults(MLFLOW_ALLOW_FILE_STORE="true", MLFLOW_DISABLE_TELEMETRY="true")
        return _Run(run, self.experiment)


class _Run:
    """A run in the store."""

    def __init__(self, run: TrackedRun, experiment: str) -> None:
        from mlflow.tracking import MlflowClient

        store = (run.directory / "mlflow").resolve()
        self._client = MlflowClient(tracking_uri=store.as_uri())
        known = self._client.get_experiment_by_name(experiment)
        if known is None:
            number = self._client.create_experiment(experiment)
        else:
            number = known.experiment_id
        self._run = self._client.create_run(number, run_name=run.directory.name).info.run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)
