"""Watch metrics, and stop a run where one passes its limit."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import partial
from math import inf
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.regular_file import replace_text
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tasks import GuardConfig
from verl_hpc.errors import CheckpointError, ConfigError, agreed
from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.names import TASK
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.records import GUARDS
from verl_hpc.trainer.state import Progress, restore

_logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class Violation:
    """A metric that has passed the limit of its guard."""

    guard: str
    metric: str
    step: int
    value: float
    """Mean of the newest values."""
    limit: float
    action: Literal["alert", "stop"]

    def __str__(self) -> str:
        name = f"guards.{self.guard}: {self.metric}"
        return f"{name} is {self.value:g} at step {self.step}, past {self.limit:g}"


class Watch:
    """The newest values of one guard's metric."""

    def __init__(self, name: str, config: GuardConfig) -> None:
        self._name, self.config = name, config
        self._newest: deque[float] = deque(maxlen=config.over)
        self._best = -math.inf
        self.last_step = -1
        self.since: int | None = None
        """First step of the violation; None without one."""
        self.is_handled = False
        """Whether this violation was acted on."""

    def see(self, step: int, value: float | None) -> Violation | None:
        """Add a value, None for one that is not finite; return a violation to act on."""
        if value is None or not math.isfinite(value):  # which metrics.jsonl does not tell apart
            value = math.nan
        self._newest.append(value)
        self.last_step = step
        if len(self._newest) < self.config.over:
            return None
        mean = fmean(self._newest)
        limit, is_violated = self._compare(mean)
        if not is_violated:
            self._best, self.since, self.is_handled = max(self._best, mean), None, False
            return None
        if self.since is None:
            self.since = step
        config = self.config
        violation = Violation(self._name, config.metric, step, mean, limit, config.action)
        return None if self.is_handled else violation

    def _compare(self, mean: float) -> tuple[float, bool]:
        """Return the limit, and whether the mean has passed it."""
        config = self.config
        if config.above is not None:
            return config.above, not mean <= config.above
        limit = self._best - config.drop if config.drop is not None else config.below
        assert limit is not None
        return limit, not mean >= limit


class Guards:
    """The guards of a run. All ranks call every method together; rank 0 looks at the metrics.

    Args:
        run: the run.
        step: newest finished step; values up to it are read from metrics.jsonl.
    """

    def __init__(self, run: RunContext, step: int) -> None:
        self._run, self._config, self._control = run, run.config, run.session.control
        self._leads = run.rank == 0
        self._watches = {name: Watch(name, guard) for name, guard in run.config.guards.items()}
        self._seen: set[str] = set()
        self._start = step
        self.violation: Violation | None = None
        """The newest violation that stops the run."""
        if self._watches:
            _on_rank_0(run, lambda: self._read(step))

    @property
    def need_first_weights(self) -> bool:
        """Whether a guard may stop the run at its start."""
        stops = any(guard.action == "stop" for guard in self._config.guards.values())
        return stops and self._config.evaluation.at_start

    def _read(self, step: int) -> None:
        """See the values up to a step again, and which violations were acted on."""
        directory = self._config.run_directory
        for row in read_metrics(directory):
            if row["step"] <= step:
                self._see(row["step"], row)
        lines = read_violations(directory)
        for name, watch in self._watches.items():
            since = inf if watch.since is None else watch.since
            watch.is_handled = any(x["guard"] == name and x["step"] >= since for x in lines)

    def look(self, step: int, metrics: Mapping[str, float]) -> bool:
        """Look at a step's metrics, which rank 0 has; return on all ranks whether the run is to
        stop.

        Raises:
            ConfigError: on every rank, if a guard's metric is one that no step writes.
            CheckpointError: on every rank, if guards.jsonl cannot be written.
        """
        if not self._watches:
            return False
        mine = (self._see(step, metrics), self._unknown(step))
        violations, problem = self._control.broadcast(mine if self._leads else None)
        if problem:
            raise agreed(ConfigError(problem))
        stops = False
        for violation in violations:
            self._watches[violation.guard].is_handled = True
            if self._leads:
                _logger.warning("%s: %s", violation, violation.action)
            _on_rank_0(self._run, partial(_write, self._config, asdict(violation)))
            if violation.action == "stop":
                stops, self.violation = True, violation
        return stops

    def _see(self, step: int, metrics: Mapping[str, Any]) -> list[Violation]:
        self._seen.update(metrics)
        violations = []
        for watch in self._watches.values():
            name = watch.config.metric
            if name in metrics and watch.last_step < step:
                violation = watch.see(step, metrics[name])
                violations += [violation] if violation is not None else []
        return violations

    def _unknown(self, step: int) -> str:
        """Return an error about a guard whose metric should be there by now; empty if all are."""
        if step == self._start:  # this start has not taken a step
            return ""
        for name, watch in self._watches.items():
            metric = watch.config.metric
            if metric not in self._seen and self._is_due(metric, step):
                near = near_or_all(metric, sorted(self._seen), "metrics")
                return f"guards.{name}.metric = {metric}: no step writes it; {near}"
        return ""

    def _is_due(self, metric: str, step: int) -> bool:
        if metric.startswith("val/"):
            return any(name.startswith("val/") for name in self._seen)
        late = self._config.critic.warmup_steps
        if metric.startswith("perf/") or (late and self._config.tasks and "actor/" in metric):
            return False  # it may come with a save, or with the first update of a task's actor
        # The times of a step are there once it is recorded, and so is all of the first task's.
        if step <= late + 1:
            return False
        wanted = [f"{TASK}{task}/" for task in self._config.tasks]
        if metric.startswith(TASK):
            wanted = [prefix for prefix in wanted if metric.startswith(prefix)]
        return all(
            any(name.startswith(prefix) and name != f"{prefix}weight" for name in self._seen)
            for prefix in wanted
        )


def resume(run: RunContext) -> Progress | None:
    """Restore the newest checkpoint (`restore`); a run that begins has no violations yet."""
    progress = restore(run)
    if progress is None:
        _on_rank_0(run, lambda: (run.config.run_directory / GUARDS).unlink(missing_ok=True))
    return progress


def _on_rank_0(run: RunContext, work: Callable[[], T]) -> T:
    """Return the result of work with files, which rank 0 does, on every rank.

    Raises:
        CheckpointError: on every rank, if a file cannot be read or written.
    """

    def done() -> T | None:
        try:
            return work() if run.rank == 0 else None
        except OSError as error:
            directory = run.config.run_directory
            raise CheckpointError(f"run.directory: cannot use {directory}: {error}") from error

    result: T = run.session.control.broadcast(run.session.control.together(done))
    return result


def read_violations(run_directory: Path) -> list[dict[str, Any]]:
    """Return the lines of guards.jsonl, without one that a kill cut short."""
    path = run_directory / GUARDS
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    whole = []
    for line in lines:
        try:
            whole.append(json.loads(line))
        except ValueError:
            continue
    return whole


def _write(config: RunConfig, line: Mapping[str, Any]) -> None:
    """Add a line to guards.jsonl, which a kill leaves as it was."""
    finite = {n: v for n, v in line.items() if not isinstance(v, float) or math.isfinite(v)}
    lines = [*read_violations(config.run_directory), finite]
    replace_text(config.run_directory / GUARDS, "".join(json.dumps(one) + "\n" for one in lines))
