"""Records of a run for people: metrics, timeline, samples and report."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch

from verl_hpc.config.regular_file import is_regular, replace_text
from verl_hpc.config.requests import KINDS
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.generations import forget_after
from verl_hpc.metrics.log import FILE_NAME as METRICS
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.meters import Counter, Meters, find_counters
from verl_hpc.metrics.names import VALIDATION
from verl_hpc.metrics.report import FILE_NAME as REPORT
from verl_hpc.metrics.report import write_report
from verl_hpc.metrics.samples import Kind, SampleGroup, SampleLog
from verl_hpc.metrics.sections import FLOW_FILE
from verl_hpc.metrics.sinks import Sinks, open_sinks
from verl_hpc.metrics.timeline import Timeline, open_timeline
from verl_hpc.metrics.traces import Traces
from verl_hpc.runs.heartbeat import FILE as HEARTBEAT
from verl_hpc.runs.heartbeat import Heartbeat
from verl_hpc.runs.ranks import FILE as RANKS
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.state import Progress

_logger = logging.getLogger(__name__)

CONFIG = "config.yaml"
FACTS = "facts.json"
GUARDS = "guards.jsonl"
_FILES = (
    *(CONFIG, FACTS, FLOW_FILE, GUARDS, HEARTBEAT, METRICS, RANKS, REPORT),
    *(f"request_{kind}.json" for kind in KINDS),
)
"""Files that a run writes, replaces or removes."""
ENDS = ("finished", "goal reached")

Outcome = Literal["finished", "goal reached", "stopped", "restart", "rollback"]
"""How a run ended: all steps done; evaluation.stop_at reached; stopped for good on request or by a
guard; stopped to be restarted from its last step; a guard takes it back to an earlier step."""


def check_files(run_directory: Path) -> None:
    """Check before any work that the run can write its files.

    Raises:
        ConfigError: one of these names is not a regular file.
    """
    for path in (run_directory / name for name in _FILES):
        if os.path.lexists(path) and not is_regular(path):
            raise ConfigError(
                f"{path}: not a regular file, and a run writes one of this name; delete it, or "
                "give this run another name"
            )


@dataclass(frozen=True)
class Result:
    """How far a run got, and why it ended."""

    progress: Progress
    outcome: Outcome
    reason: str = ""


@dataclass
class Records:
    """Everything that watches a run; ranks other than 0 have only a timeline, meters and traces."""

    directory: Path
    timeline: Timeline
    meters: Meters
    traces: Traces | None = None
    heartbeat: Heartbeat | None = None
    sample_log: SampleLog | None = None
    log: MetricsLog | None = None
    sinks: Sinks | None = None
    report: bool = False
    step_now: int = 0
    """Step under way; 0 before the first."""

    @property
    def last_evaluated(self) -> int:
        """Newest step whose metrics include an evaluation; -1 without one."""
        return self.log.newest.get(VALIDATION, -1) if self.log is not None else -1

    def begin_step(self, step: int) -> None:
        """Note that a step begins."""
        self.step_now = step
        if self.traces is not None:
            self.traces.begin(step)

    def stage(self, name: str, place: str = "all", step: int | None = None) -> None:
        """Note that an operator starts, of the step under way or of another, and that the one
        before it has ended."""
        self.meters.enter(name)
        if self.traces is not None:
            self.traces.enter(name)
        self.timeline.begin(self.step_now if step is None else step, name, place)
        if self.sinks is not None:
            self.sinks.stage(name)
        if self.heartbeat is not None:
            self.heartbeat.beat(name, self.step_now)

    def pause(self) -> None:
        """Note that the operator under way has ended, and the next has not begun."""
        self.meters.enter("")
        if self.traces is not None:
            self.traces.enter("")

    def samples(self, step: int, kind: Kind, groups: Sequence[SampleGroup]) -> None:
        """Write some prompts and responses for people to read."""
        if self.sample_log is not None and groups:
            self.sample_log.write(step, kind, groups)

    def rewards(self, values: Sequence[float], task: str = "") -> None:
        """Pass the scores of a step's responses to sinks that show their distribution."""
        if self.sinks is not None and values:
            self.sinks.rewards(values, task)

    def write(self, step: int, metrics: Mapping[str, float]) -> None:
        """Write a step's metrics to the log and all sinks."""
        if self.log is not None and self.sinks is not None:
            self.log.write(step, metrics)
            self.sinks.write(step, metrics)

    def finish(self, facts: Mapping[str, Any]) -> None:
        """Write the run's facts, and its report if configured; rank 0 alone."""
        replace_text(self.directory / FACTS, json.dumps(facts, indent=1, default=str))
        if self.report:
            write_report(self.directory, facts)


def _forget_generations(directory: Path, last: int) -> None:
    try:
        forget_after(directory, last)
    except OSError as error:
        _logger.warning("answers of evaluations that are done again stay: %s", error)


@contextmanager
def open_records(
    run: RunContext, restored: Progress | None, heartbeat: Heartbeat | None = None
) -> Iterator[Records]:
    """Open the records of a run, continuing after the restored step."""
    config, rank = run.config, run.rank
    directory, settings = config.run_directory, config.metrics
    resumed = None if restored is None else restored.step
    profile, traces = config.runtime.profile, None
    if profile is not None and rank in profile.ranks:
        traces = Traces(profile, directory, rank, str(run.session.device))
    sample_log, log, sinks = None, None, None
    with ExitStack() as stack:
        timeline = stack.enter_context(
            open_timeline(directory, rank, run.session.world.size, run.ranks, resumed)
        )
        if rank == 0:
            log = stack.enter_context(MetricsLog(directory, resumed))
            sinks = stack.enter_context(
                open_sinks(
                    settings,
                    directory,
                    run.num_steps,
                    recipe=config.method,
                    resumed_from=resumed,
                    settings=config.model_dump(mode="json"),
                )
            )
            sample_log = SampleLog(directory, resumed)
            _forget_generations(directory, -1 if resumed is None else resumed)
        # The first step's seconds begin here.
        meters, report = Meters(_counters(run)), settings.report
        yield Records(
            directory, timeline, meters, traces, heartbeat, sample_log, log, sinks, report
        )


def _counters(run: RunContext) -> list[Counter]:
    """Return the energy counters of this rank's GPU and, on a node's first rank, of its CPUs."""
    world = run.session.world
    on_gpu = world.device != "cpu"
    uuid = str(torch.cuda.get_device_properties(world.device).uuid) if on_gpu else None
    return find_counters(uuid, reads_node=world.local_rank == 0)
