"""Log to SwanLab without a network: to a directory that SwanLab's own `sync` uploads."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl_hpc.config.trackers import SwanlabConfig
from verl_hpc.metrics.offline import OfflineRun

DIRECTORY = "swanlab"
"""Directory below the run directory."""


class Swanlab(OfflineRun):
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
            log_dir=str(run_directory / DIRECTORY),
            config=dict(settings or {}),
            settings=quiet,
        )
        super().__init__(run)
