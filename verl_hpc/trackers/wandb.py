"""Weights & Biases."""

from __future__ import annotations

from typing import Literal

from verl_hpc.tracker import Label, OfflineRun, Sink, TrackedRun, Tracker, set_defaults


class Wandb(Tracker):
    """Weights & Biases, without a network: `wandb sync RUN/wandb/offline-run-*` uploads it
    from a login node. Each start of a run is a run there, all in the group of the run's name."""

    module = package = "wandb"
    project: Label
    """Project of the uploaded run."""
    entity: Label | None = None
    """User or team; null is that of the key that uploads."""
    mode: Literal["offline"] = "offline"
    """Ranks need no network and no key; `wandb sync` has both."""

    def open(self, run: TrackedRun) -> Sink:
        """Begin a run that holds the metrics and the resolved configuration, and nothing of this
        machine, its user or the code."""
        set_defaults(WANDB_ERROR_REPORTING="false", WANDB_DISABLE_WEAVE="true")
        import wandb

        quiet = wandb.Settings(
            mode=self.mode,
            root_dir=str(run.directory),
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
        (run.directory / "wandb").mkdir(exist_ok=True)
        return OfflineRun(
            wandb.init(
                project=self.project,
                entity=self.entity,
                name=run.directory.name,
                group=run.directory.name,
                dir=str(run.directory),
                config=dict(run.settings),
                settings=quiet,
            )
        )
