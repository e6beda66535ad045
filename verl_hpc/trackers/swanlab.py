"""SwanLab."""

from __future__ import annotations

from typing import Literal

from verl_hpc.tracker import Label, OfflineRun, Sink, TrackedRun, Tracker


class Swanlab(Tracker):
    """SwanLab, without a network: RUN/swanlab has what `swanlab sync` uploads."""

    module = package = "swanlab"
    project: Label
    """Project of the uploaded run."""
    mode: Literal["offline"] = "offline"
    """Ranks need no network and no key."""

    def open(self, run: TrackedRun) -> Sink:
        """Begin a run that holds the metrics and the resolved configuration, and nothing of this
        machine, its user or the code."""
        import swanlab

        probes = ("hardware", "runtime", "requirements", "conda", "git", "monitor")
        quiet = swanlab.Settings(
            interactive=False, terminal={"proxy_type": "none"}, probe=dict.fromkeys(probes, False)
        )
        return OfflineRun(
            swanlab.init(
                project=self.project,
                name=run.directory.name,
                group=run.directory.name,
                mode=self.mode,
                log_dir=str(run.directory / "swanlab"),
                config=dict(run.settings),
                settings=quiet,
            )
        )
