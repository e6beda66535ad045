"""Watch metrics, and go back to a checkpoint where one passes its limit."""

from __future__ import annotations

import json
import logging
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, TypeVar

from verl_hpc.checkpoint.run_state import TaskState
from verl_hpc.checkpoint.schema import MANIFEST, step_number
from verl_hpc.checkpoint.store import complete_steps, point_latest, remove_torn
from verl_hpc.config.explain import near_or_all
from verl_hpc.config.regular_file import replace_text
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tasks import GuardConfig
from verl_hpc.data.order import Position
from verl_hpc.errors import CheckpointError, ConfigError, TrainingError, agreed
from verl_hpc.metrics.log import read_metrics
from verl_hpc.metrics.names import TASK
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.records import GUARDS
from verl_hpc.trainer.state import Progress, checkpoint_root, load_step_directory, restore

_logger = logging.getLogger(__name__)

T = TypeVar("T")
Action = Literal["", "stop", "rollback"]
"""What all ranks do after a violation; an alert is written by rank 0 alone."""


@dataclass(frozen=True)
class Violation:
    """A metric that has passed the limit of its guard."""

    guard: str
    metric: str
    step: int
    value: float
    """Mean of the newest values."""
    limit: float
    action: Literal["alert", "stop", "rollback"]
    good_until: int
    """Newest step whose value is not among those; 0 if all are, -1 if the first weights' is the
    only one."""

    def __str__(self) -> str:
        name = f"guards.{self.guard}: {self.metric}"
        return f"{name} is {self.value:g} at step {self.step}, past {self.limit:g}"


class Watch:
    """The newest values of one guard's metric."""

    def __init__(self, name: str, config: GuardConfig) -> None:
        self._name, self.config = name, config
        self._newest: deque[tuple[int, float]] = deque(maxlen=config.over)
        self._best = -math.inf
        self._before = 0
        self.good_until: int | None = None
        """Newest step before the violation; None without one."""
        self.is_handled = False
        """Whether this violation was acted on."""

    @property
    def last_step(self) -> int:
        return self._newest[-1][0] if self._newest else -1

    def see(self, step: int, value: float | None) -> Violation | None:
        """Add a value, None for one that is not finite; return a violation to act on."""
        if len(self._newest) == self.config.over:
            self._before = self._newest[0][0]
        if value is None or not math.isfinite(value):  # which metrics.jsonl does not tell apart
            value = math.nan
        self._newest.append((step, value))
        if len(self._newest) < self.config.over:
            return None
        mean = fmean(value for _, value in self._newest)
        limit, is_violated = self._compare(mean)
        if not is_violated:
            self._best, self.good_until, self.is_handled = max(self._best, mean), None, False
            return None
        if self.good_until is None:
            self.good_until = self._before if step else -1
        if self.is_handled:
            return None
        config = self.config
        return Violation(
            self._name, config.metric, step, mean, limit, config.action, self.good_until
        )

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
        self._pending: list[Violation] = []
        """Violations that an earlier start has seen and not acted on, on rank 0."""
        self.violation: Violation | None = None
        """The newest violation."""
        if self._watches:
            _on_rank_0(run, lambda: self._read(step))

    @property
    def need_first_weights(self) -> bool:
        """Whether a guard may take the run back to its start, or stop it there."""
        needs = {"rollback"} | ({"stop"} if self._config.evaluation.at_start else set())
        return any(guard.action in needs for guard in self._config.guards.values())

    def _read(self, step: int) -> None:
        """See the values up to a step again, and which violations were acted on."""
        directory = self._config.run_directory
        newest: dict[str, Violation] = {}
        for row in read_metrics(directory):
            if row["step"] <= step:
                newest |= {v.guard: v for v in self._see(row["step"], row)}
        self._mark_handled(read_violations(directory))
        for name, watch in self._watches.items():
            if watch.good_until is not None and not watch.is_handled:
                self._pending.append(newest[name])

    def look(self, step: int, metrics: Mapping[str, float]) -> Action:
        """Look at a step's metrics, which rank 0 has; return what is to be done on all ranks, the
        first time also about what an earlier start has left undone.

        Raises:
            ConfigError: on every rank, if a guard's metric is one that no step writes.
            CheckpointError: on every rank, if guards.jsonl cannot be written.
        """
        if not self._watches:
            return ""
        mine = (self._pending + self._see(step, metrics), self._unknown(step))
        violations, problem = self._control.broadcast(mine if self._leads else None)
        self._pending = []
        if problem:
            raise agreed(ConfigError(problem))
        action: Action = ""
        for violation in violations:
            self._watches[violation.guard].is_handled = True
            if self._leads:
                _logger.warning("%s: %s", violation, violation.action)
            if violation.action != "rollback":
                _on_rank_0(self._run, partial(_write, self._config, asdict(violation)))
            if violation.action == "rollback" or (violation.action == "stop" and not action):
                action, self.violation = violation.action, violation
        return action

    def _see(self, step: int, metrics: Mapping[str, Any]) -> list[Violation]:
        self._seen.update(metrics)
        violations = []
        for watch in self._watches.values():
            name = watch.config.metric
            if name in metrics and watch.last_step < step:
                violation = watch.see(step, metrics[name])
                violations += [violation] if violation is not None else []
        return violations

    def _mark_handled(self, lines: list[dict[str, Any]]) -> None:
        for name, watch in self._watches.items():
            good = watch.good_until
            watch.is_handled = good is not None and any(
                line["guard"] == name and line["step"] > good and "to" not in line for line in lines
            )

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


def go_back(run: RunContext, violation: Violation, progress: Progress) -> Progress:
    """Restore the newest checkpoint before a violation, and delete those after it; every rank calls
    it.

    Args:
        progress: the run at the violation; training data up to there are skipped.

    Raises:
        TrainingError: on every rank, if that was done too often, or no checkpoint is that old.
        CheckpointError: on every rank, if a checkpoint or guards.jsonl cannot be changed.
    """
    run.prepare()
    step = _on_rank_0(run, lambda: _forget(run.config, violation, progress))
    return _skip(run, load_step_directory(run, step))


def resume(run: RunContext) -> Progress | None:
    """Restore the newest checkpoint (`restore`), skipping the data that a rollback skips."""
    progress = restore(run)
    if progress is not None:
        return _skip(run, progress)
    _on_rank_0(run, lambda: (run.config.run_directory / GUARDS).unlink(missing_ok=True))
    return None


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


def _forget(config: RunConfig, violation: Violation, progress: Progress) -> Path:
    """Delete the steps after a violation, write it down, and return the step to go on from."""
    root, setting = checkpoint_root(config), f"guards.{violation.guard}"
    steps = {step_number(path) or 0: path for path in complete_steps(root)}
    target = max((number for number in steps if number <= violation.good_until), default=None)
    if violation.step == 0:
        raise TrainingError(f"{violation}, with its first weights; give {setting} another limit")
    if target is None:
        raise TrainingError(
            f"{violation}; it was good until step {violation.good_until}, and checkpoint.keep = "
            f"{config.checkpoint.keep} has left {', '.join(map(str, sorted(steps))) or 'none'}; "
            "raise it, or watch with a smaller over"
        )
    # A run that is killed before the line is written goes on from there all the same.
    for number, path in steps.items():
        if number > target:
            (path / MANIFEST).unlink()
    point_latest(steps[target])
    remove_torn(root)
    lines = read_violations(config.run_directory)
    earlier = [line for line in lines if line["guard"] == violation.guard and "to" in line]
    if len(earlier) >= config.guards[violation.guard].max_rollbacks:
        raise TrainingError(
            f"{violation}, after {len(earlier)} rollbacks ({setting}.max_rollbacks); the run ends "
            f"with step {target}: lower the learning rate, or raise the limit"
        )
    positions = {name: asdict(state.position) for name, state in progress.tasks.items()}
    skipped = {"position": asdict(progress.position), "tasks": positions}
    _write(config, asdict(violation) | {"to": target} | skipped)
    return steps[target]


def _skip(run: RunContext, progress: Progress) -> Progress:
    """Move to where the data were when the last rollback to this step began, if there is one."""
    if not run.config.guards:
        return progress
    lines = _on_rank_0(run, lambda: read_violations(run.config.run_directory))
    last = next((line for line in reversed(lines) if "to" in line), None)
    if last is None or last["to"] != progress.step:
        return progress
    if run.rollout is not None:
        run.rollout.forget()  # responses to the prompts that are skipped
    tasks = {
        name: progress.tasks.get(name, TaskState()).model_copy(
            update={"position": Position(**position)}
        )
        for name, position in last["tasks"].items()
    }
    return replace(progress, position=Position(**last["position"]), tasks=tasks)


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
