"""What a run leaves for people: metrics, views, and the facts of its report."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from verl_hpc.config.load import dump_config
from verl_hpc.config.regular_file import is_regular
from verl_hpc.config.requests import KINDS
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.log import FILE_NAME as METRICS
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.names import VALIDATION
from verl_hpc.metrics.report import FILE_NAME as REPORT
from verl_hpc.metrics.report import write_report
from verl_hpc.metrics.sinks import Sinks, open_sinks
from verl_hpc.runs.heartbeat import FILE as HEARTBEAT
from verl_hpc.runs.ranks import FILE as RANKS
from verl_hpc.runs.verdict import counted
from verl_hpc.runtime.session import Session
from verl_hpc.trainer.state import Progress
from verl_hpc.trainer.versions import installed_versions
from verl_hpc.trainer.workers import Workers

CONFIG = "config.yaml"
FACTS = "facts.json"
FLOW = "flow.txt"
_FILES = (
    *(CONFIG, FACTS, FLOW, HEARTBEAT, METRICS, RANKS, REPORT),
    *(f"request_{kind}.json" for kind in KINDS),
)
"""What a run writes, replaces or removes while it lasts."""
ENDS = ("finished", "goal reached")
_STATES = {name: name for name in (*ENDS, "stopped")} | {"restart": "interrupted"}

Outcome = Literal["finished", "goal reached", "stopped", "restart"]
"""All steps done; evaluation.stop_at reached; left for good on request; left to be started again
where it is."""


def check_files(run_directory: Path) -> None:
    """Find out before any work what a run could not write in the end, or would wait on for ever.

    Raises:
        ConfigError: something else than a regular file has the name of one.
    """
    for path in (run_directory / name for name in _FILES):
        if os.path.lexists(path) and not is_regular(path):
            raise ConfigError(
                f"{path}: no regular file, and a run writes one of this name; delete it, or give "
                "this run another name"
            )


@dataclass(frozen=True)
class Result:
    """What became of a run."""

    progress: Progress
    outcome: Outcome
    reason: str = ""


@dataclass
class Records:
    """Metrics and views; real on rank 0, silent elsewhere."""

    directory: Path
    log: MetricsLog | None = None
    sinks: Sinks | None = None
    report: bool = False

    @property
    def last_evaluated(self) -> int:
        """The newest step whose line has an evaluation, -1 if none has."""
        return self.log.newest.get(VALIDATION, -1) if self.log is not None else -1

    def stage(self, name: str) -> None:
        """Show the operator that begins."""
        if self.sinks is not None:
            self.sinks.stage(name)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """A step's line and whatever shows it."""
        if self.log is not None and self.sinks is not None:
            self.log.write(step, metrics)
            self.sinks.write(step, metrics)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Leave the facts of the run, and its report if that is wanted."""
        if self.log is not None:
            text = json.dumps(facts, indent=1, default=str)
            (self.directory / FACTS).write_text(text, encoding="utf-8")
            if self.report:
                write_report(self.directory, facts)


@contextmanager
def open_records(
    session: Session, config: RunConfig, restored: Progress | None
) -> Iterator[Records]:
    """Go on with the records of a run, after the step that it was restored to."""
    directory = config.run_directory
    if session.world.rank != 0:
        yield Records(directory)
        return
    resumed = None if restored is None else restored.step
    settings = config.metrics
    with (
        MetricsLog(directory, resumed) as log,
        open_sinks(
            settings, directory, config.steps, recipe=config.recipe, resumed_from=resumed
        ) as sinks,
    ):
        yield Records(directory, log, sinks, settings.report)


def run_facts(workers: Workers, result: Result) -> dict[str, Any]:
    """What the report says besides the metrics."""
    config, layouts, world = workers.config, workers.layouts, workers.session.world
    train = layouts.train
    left = "" if result.outcome in ENDS else f" at step {result.progress.step}: {result.reason}"
    return {
        "name": config.name,
        "recipe": config.recipe,
        "state": f"{_STATES[result.outcome]}{left}",
        "total_steps": config.steps,
        "config": dump_config(config),
        "model": f"{config.model.path} ({workers.arch.num_parameters:,} parameters)",
        "ranks": f"{world.size} on {counted(world.num_nodes, 'node')}",
        "num_ranks": world.size,
        "num_nodes": world.num_nodes,
        "training layout": f"tp {train.tp}, pp {train.pp}, dp {train.dp}, vpp {train.vpp}",
        "rollout layout": (
            f"{config.rollout.engine}, tp {config.rollout.tensor_parallel} x "
            f"{layouts.num_replicas}, {layouts.grouping}"
        ),
        **({"evaluation data": workers.problems.facts} if workers.problems.facts else {}),
        **workers.kernels,
        "versions": installed_versions(),
    }
