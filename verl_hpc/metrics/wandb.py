"""Log to Weights & Biases without a network: to a directory that W&B's own `sync` uploads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hpc.config.trackers import WandbConfig
from verl_hpc.metrics.offline import OfflineRun
from verl_hpc.runtime import environment

DIRECTORY = "wandb"
"""Directory below the run directory, in which W&B keeps its runs."""


class Wandb(OfflineRun):
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
        (run_directory / DIRECTORY).mkdir(exist_ok=True)
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
