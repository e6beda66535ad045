"""Trackers that log finished steps: TensorBoard, MLflow, and offline runs of W&B and SwanLab.

Each imports its package when it is opened. Offline runs need no network: they are directories that
the tracker's own `sync` uploads.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hpc.config.trackers import MlflowConfig, SwanlabConfig, WandbConfig
from verl_hpc.errors import ConfigError
from verl_hpc.runtime import environment


class TensorBoard:
    """Writes one event file per start of a run, all in one directory."""

    def __init__(self, directory: Path, resumed_from: int | None = None) -> None:
        """Open an event file.

        Args:
            resumed_from: step after which TensorBoard hides earlier starts' values; None hides all
                of them.

        Raises:
            ConfigError: tensorboard is not installed.
        """
        try:
            from tensorboard.compat.proto.event_pb2 import Event, SessionLog
            from tensorboard.compat.proto.summary_pb2 import Summary
            from tensorboard.summary.writer.event_file_writer import EventFileWriter
        except ImportError as error:
            raise ConfigError(
                f"metrics.tensorboard = true: {error}; pip install 'verl_hpc[track]' or set it to "
                "false"
            ) from None
        self._event = Event
        self._summary = Summary
        self._writer = EventFileWriter(str(directory), flush_secs=10)
        first = 0 if resumed_from is None else resumed_from + 1
        start = SessionLog(status=SessionLog.START)
        self._writer.add_event(Event(wall_time=time.time(), step=first, session_log=start))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        scalars = [self._summary.Value(tag=k, simple_value=v) for k, v in values.items()]
        summary = self._summary(value=scalars)
        self._writer.add_event(self._event(wall_time=time.time(), step=step, summary=summary))

    def close(self) -> None:
        self._writer.close()


class Mlflow:
    """Logs each start of a run as a run in RUN/mlflow.

    It writes files, not the database that MLflow prefers: SQLite's locks are slow or missing on the
    parallel file systems of run directories. `mlflow migrate-filestore` converts them.
    """

    def __init__(self, config: MlflowConfig, run_directory: Path) -> None:
        """Begin a run named after the run directory."""
        environment.prepare_trackers()
        from mlflow.tracking import MlflowClient

        store = (run_directory / "mlflow").resolve()
        self._client = MlflowClient(tracking_uri=store.as_uri())
        known = self._client.get_experiment_by_name(config.experiment)
        if known is None:
            experiment = self._client.create_experiment(config.experiment)
        else:
            experiment = known.experiment_id
        self._run = self._client.create_run(experiment, run_name=run_directory.name).info.run_id

    def write(self, step: int, values: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(1000 * time.time())
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def close(self) -> None:
        self._client.set_terminated(self._run)


class _OfflineRun:
    """A sink that logs to an offline run of its own package.

    Args:
        run: object with `log(values, step=...)` and `finish()`.
    """

    def __init__(self, run: Any) -> None:
        self._run = run

    def write(self, step: int, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        self._run.finish()


class Wandb(_OfflineRun):
    """Logs each start of a run as an offline run of W&B. It holds the metrics and the resolved
    configuration, nothing of this machine, its user or the code; `RUN/wandb/` has it."""

    def __init__(
        self, config: WandbConfig, run_directory: Path, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Begin a run.

        Args:
            run_directory: directory whose name becomes the run's, and that of the group of all its
                starts.
            settings: settings of the run, kept as W&B's config.
        """
        environment.prepare_trackers()
        import wandb

        quiet = wandb.Settings(
            mode=config.mode,
            root_dir=str(run_directory),
            console="off",
            silent=True,
            disable_code=True,
            disable_git=True,
            save_code=False,
            x_disable_meta=True,
            x_disable_stats=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            x_transaction_log_flush_interval=1.0,
            host="-",
        )
        # W&B would make it, but falls back to a temporary directory if it cannot.
        (run_directory / "wandb").mkdir(exist_ok=True)
        run = wandb.init(
            project=config.project,
            entity=config.entity,
            name=run_directory.name,
            group=run_directory.name,
            dir=str(run_directory),
            config=dict(settings or {}),
            settings=quiet,
        )
        super().__init__(run)


class Swanlab(_OfflineRun):
    """Logs each start of a run as an offline run of SwanLab in RUN/swanlab. It holds the metrics
    and the resolved configuration, nothing of this machine, its user or the code."""

    def __init__(
        self, config: SwanlabConfig, run_directory: Path, settings: Mapping[str, Any] | None = None
    ) -> None:
        """Begin a run named after the run directory.

        Args:
            settings: settings of the run, kept as SwanLab's config.
        """
        import swanlab

        probes = ("hardware", "runtime", "requirements", "conda", "git", "monitor")
        quiet = swanlab.Settings(
            interactive=False, terminal={"proxy_type": "none"}, probe=dict.fromkeys(probes, False)
        )
        run = swanlab.init(
            project=config.project,
            name=run_directory.name,
            group=run_directory.name,
            mode=config.mode,
            log_dir=str(run_directory / "swanlab"),
            config=dict(settings or {}),
            settings=quiet,
        )
        super().__init__(run)
