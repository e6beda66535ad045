"""The loop: run a recipe's flow step by step, evaluate, save, and leave a report."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import torch

from verl_hpc.checkpoint.schema import step_name
from verl_hpc.config.load import dump_config
from verl_hpc.config.run import RunConfig
from verl_hpc.errors import CheckpointError
from verl_hpc.flow import DataFlow, Move, Pipeline
from verl_hpc.metrics.timers import Timers
from verl_hpc.runs.heartbeat import Heartbeat
from verl_hpc.runs.lock import RunLock
from verl_hpc.runs.ranks import FILE as RANKS
from verl_hpc.runtime.debug.attach import Attachments
from verl_hpc.runtime.debug.breakpoints import Breakpoints
from verl_hpc.runtime.debug.post_mortem import PostMortem
from verl_hpc.runtime.debug.stacks import write_stacks_on_signal
from verl_hpc.runtime.garbage import resume_collection
from verl_hpc.runtime.session import Session
from verl_hpc.runtime.startup import announce
from verl_hpc.runtime.stop import Signals, StepDropped, StopFlag, Wish
from verl_hpc.trainer.batch import Columns, Prompts
from verl_hpc.trainer.evaluate import evaluate
from verl_hpc.trainer.measure import (
    DROPPED,
    memory_metrics,
    num_dropped,
    step_metrics,
    warn_of_dropped,
)
from verl_hpc.trainer.recipes.grpo import grpo
from verl_hpc.trainer.recipes.ppo import critic_warmup, ppo
from verl_hpc.trainer.recipes.sft import sft
from verl_hpc.trainer.records import (
    CONFIG,
    ENDS,
    FLOW,
    Outcome,
    Records,
    Result,
    check_files,
    open_records,
    run_facts,
)
from verl_hpc.trainer.redistribute import redistribute
from verl_hpc.trainer.state import START, Progress, checkpoint_root, has_steps, restore, save
from verl_hpc.trainer.workers import ROLLOUT, Workers, build_workers

_logger = logging.getLogger(__name__)

RECIPES: Mapping[str, Callable[[Workers], DataFlow]] = {"sft": sft, "grpo": grpo, "ppo": ppo}


def train(session: Session, config: RunConfig, signals: Signals | None = None) -> Result:
    """Run a configuration to its end, or on from its newest checkpoint; every rank calls it.

    Signals, the allocation's end and requests (see `runtime.stop`) end it before: all ranks save
    and return.

    Args:
        session: of this rank.
        config: of the run.
        signals: that somebody listens to already; else only those from now on are noticed.

    Returns:
        How far the run got, and why it went no further; the same on every rank.

    Raises:
        VerlHpcError: bad input, before any work is done; TrainingError, RewardError or DataError
            in the middle of it. The last checkpoint is intact.
    """
    signals = signals or Signals()
    signals.listen()
    with _run_directory(session, config) as lock:
        _be_watched(session, config)
        with _heartbeat(session, config) as heartbeat:
            return _train(session, config, signals, lock, heartbeat)


def _train(
    session: Session,
    config: RunConfig,
    signals: Signals,
    lock: RunLock | None,
    heartbeat: Heartbeat | None,
) -> Result:
    def enter(stage: str) -> None:
        session.enter(stage)
        if heartbeat is not None:
            heartbeat.beat(stage, 0)
            announce(stage, config.metrics.terminal)

    resumes = has_steps(session, config)
    workers = build_workers(session, config, enter, resumes)
    workers.lock = lock
    resume_collection()
    signals.listen()
    stop = StopFlag(session.control, config.run_directory, signals)
    enter("restore")
    restored = restore(workers)
    assert restored is not None or not resumes, "engines are empty that no step has filled"
    with open_records(session, config, restored) as records:
        result = _Run(workers, stop, records, heartbeat).to_the_end(restored or START)
        records.finish(run_facts(workers, result))
    if heartbeat is not None:
        heartbeat.end(result.outcome)
    return result


def _heartbeat(session: Session, config: RunConfig) -> Heartbeat | AbstractContextManager[None]:
    """What `status` reads first; rank 0 alone writes it."""
    if session.world.rank != 0:
        return nullcontext()
    return Heartbeat(config.run_directory, total_steps=config.steps)


@contextmanager
def _run_directory(session: Session, config: RunConfig) -> Iterator[RunLock | None]:
    """Make the run directory, and hold it; rank 0 alone does."""
    directory = config.run_directory

    @_writing(directory)
    def hold() -> RunLock:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        if directory.stat().st_mode & 0o077:
            _logger.warning(
                "other users may enter %s, which has prompts and responses in it; "
                "`chmod 700 %s` closes it",
                directory,
                directory,
            )
        return RunLock(directory)

    @_writing(directory)
    def begin() -> None:
        check_files(directory)
        (directory / CONFIG).write_text(dump_config(config), encoding="utf-8")
        (directory / RANKS).unlink(missing_ok=True)  # processes of an earlier life

    together, leads = session.control.together, session.world.rank == 0
    lock = together(lambda: hold() if leads else None)
    with lock or nullcontext():
        together(lambda: begin() if leads else None)
        yield lock


@contextmanager
def _writing(directory: Path) -> Iterator[None]:
    """Around what writes into the run directory."""
    try:
        yield
    except OSError as error:
        raise CheckpointError(f"run.directory: cannot write {directory}: {error}") from error


def _be_watched(session: Session, config: RunConfig) -> None:
    """Leave in the run directory what `hang`, the dashboard and a post-mortem read; listen to
    `attach`, for which `breakpoint()` waits."""

    @_writing(config.run_directory)
    def listen() -> None:
        write_stacks_on_signal(config.run_directory, session.world.rank)

    session.control.together(listen)
    if config.runtime.post_mortem:
        world = session.world
        session.reporter.post_mortem = PostMortem(config.run_directory, world.rank, world.size)
    session.watchdog.run_directory = config.run_directory
    session.watchdog.errands.append(Attachments(session.world, config.run_directory).look)
    timeout_s = config.runtime.collective_timeout_s
    Breakpoints(session.world, config.run_directory, timeout_s).install()


class _Run:
    """A run under way."""

    def __init__(
        self, workers: Workers, stop: StopFlag, records: Records, heartbeat: Heartbeat | None
    ) -> None:
        self.workers = workers
        self.config = workers.config
        self.records = records
        self.heartbeat = heartbeat
        self.timers = Timers()
        self.stop = workers.stop = stop
        self._droppable = False
        self._step_now = 0
        self._evaluated = -1
        """The newest step with an evaluation."""
        self._saved = 0
        """The newest step with a checkpoint."""
        self._rollout_has: int | None = None
        """The step whose weights the rollout engine has."""
        self._stages = ExitStack()
        ranks = {label: tuple(r for g in gs for r in g) for label, gs in workers.groups.items()}
        self.pipeline = RECIPES[self.config.recipe](workers).compile(ranks)
        self.warmup: Pipeline | None = None
        if self.config.recipe == "ppo" and self.config.critic.warmup_steps:
            self.warmup = critic_warmup(workers).compile(ranks)
        if workers.rank == 0:
            picture = f"{self.pipeline.as_text()}\n\n{self.pipeline.as_mermaid()}\n"
            (self.config.run_directory / FLOW).write_text(picture, encoding="utf-8")

    def to_the_end(self, progress: Progress) -> Result:
        """Every step that is left, and a last save.

        A step is saved before its weights go to the rollout engine, and they go there only where
        somebody generates with them: an evaluation, and the next step.
        """
        self._evaluated = self.workers.session.control.broadcast(self.records.last_evaluated)
        owed: dict[str, float] = {}
        if self._owes_evaluation(progress.step):
            owed = self._evaluate(progress.step)
            self._record(progress.step, dict(owed))
        self._saved = progress.step
        outcome = self._outcome(progress, owed if progress.step else {}, Wish.GO_ON)
        while not outcome:
            self._step_now = step = progress.step + 1
            try:
                progress, metrics = self._step(step, progress)
            except StepDropped:
                self._droppable = False
                self._save(progress)
                if self._saved == progress.step:
                    self._keep_responses(progress.step)
                outcome = self._outcome(progress, {}, self.stop.agree())
                break
            wish = self.stop.agree(step)
            every = self.config.checkpoint.every
            if (
                wish is Wish.SAVE
                or wish.leaves
                or (every and step % every == 0)
                or step == self.config.steps
            ):
                self._save(progress)
            if wish is Wish.SAVE:
                self.stop.honoured(wish)
            if self._owes_evaluation(step) and not wish.at_once:
                metrics |= self._evaluate(step)
            outcome = self._outcome(progress, metrics, wish)
            if outcome == "goal reached":
                self._save(progress)
            self._record(step, metrics)
        assert outcome is not None, "a step is dropped only where ranks agreed to leave"
        self._enter("end")
        if outcome != "restart":
            self.stop.honoured()
        self._stages.close()
        return Result(progress, outcome, "" if outcome in ENDS else self.stop.reason)

    def _outcome(
        self, progress: Progress, metrics: Mapping[str, float], wish: Wish
    ) -> Outcome | None:
        """Why to go no further after this step, or None.

        A run that is told to leave at once owes the evaluation of its last step, and is not
        finished.
        """
        goal = self.config.evaluation.stop_at
        if progress.step >= self.config.steps and not self._owes_evaluation(progress.step):
            return "finished"
        if goal is not None and metrics.get("val/score/mean", goal - 1) >= goal:
            return "goal reached"
        if wish.leaves:
            return "stopped" if wish.for_good else "restart"
        return None

    def _step(self, step: int, progress: Progress) -> tuple[Progress, dict[str, float]]:
        begin, generates = time.monotonic(), self.config.recipe != "sft"
        metrics = self._weights_to_rollout(progress.step) if generates else {}
        self._droppable = True
        rows, position = self.workers.order.take(progress.position, self.config.batch.size)
        warming = self.warmup is not None and step <= self.config.critic.warmup_steps
        pipeline = self.warmup if warming and self.warmup is not None else self.pipeline
        values = pipeline.run(
            rank=self.workers.rank,
            mover=self._move,
            enter=partial(self._enter_operator, pipeline),
            prompts=Prompts(step, rows),
        )
        self.stop.took(step=time.monotonic() - begin)
        dropped = num_dropped(values, len(rows))
        warn_of_dropped(self.workers, f"step {step}", dropped, len(rows))
        metrics |= step_metrics(values) | {DROPPED: float(dropped)}
        return Progress(step, position), metrics

    def _move(self, move: Move, values: Mapping[str, Any]) -> dict[str, Any]:
        """Redistribute columns from one placement to another."""
        moved: dict[str, Any] = {}
        groups = self.workers.groups
        for name in move.values:
            columns = values[name]
            assert isinstance(columns, Columns), name
            moved[name] = redistribute(
                self.workers.session.world,
                values["samples"],
                columns,
                (move.source, groups[move.source]),
                (move.target, groups[move.target]),
                self.workers.session.device,
            )
        return moved

    def _weights_to_rollout(self, step: int) -> dict[str, float]:
        """Reshard, unless the rollout engine has this step's weights already."""
        if self._rollout_has == step:
            return {}
        self._enter("reshard")
        assert self.workers.sync is not None
        metrics = self.workers.sync.to_generation()
        self._rollout_has = step
        return metrics

    def _evaluate(self, step: int) -> dict[str, float]:
        metrics = self._weights_to_rollout(step)
        self._enter("testing")
        metrics |= evaluate(self.workers, step)
        self._evaluated = step
        return metrics

    def _save(self, progress: Progress) -> None:
        """Unless the step is saved already; the rollout engine gives up its weights."""
        if progress.step <= self._saved:
            return
        self._enter("save_checkpoint")
        self._rollout_has = None
        begin = time.monotonic()
        try:
            save(self.workers, progress)
        except CheckpointError as error:
            if self.config.checkpoint.on_write_failure == "stop":
                raise
            if self.workers.rank == 0:
                _logger.warning(
                    "going on without a checkpoint of step %s: %s", progress.step, error
                )
            return
        self.stop.took(save=time.monotonic() - begin)
        self._saved = progress.step

    def _keep_responses(self, saved: int) -> None:
        """Beside the step whose weights they are of; without one there is nothing to go on from."""
        workers, step = self.workers, checkpoint_root(self.config) / step_name(saved)
        if workers.kept is not None and workers.session.control.broadcast(step.is_dir()):
            replica = workers.group_index(ROLLOUT)
            leads = workers.layouts.replicas[replica][0] == workers.rank
            workers.kept.save(workers.session.control, step, replica, leads)

    def _record(self, step: int, metrics: dict[str, float]) -> None:
        self._stages.close()
        metrics |= self.timers.drain() | memory_metrics()
        if "perf/total_num_tokens" in metrics:
            seconds = metrics["timing_s/step"]
            metrics["perf/throughput"] = metrics["perf/total_num_tokens"] / seconds
            metrics["perf/time_per_step"] = seconds
        self.records.write(step, metrics)

    def _enter_operator(self, pipeline: Pipeline, name: str) -> None:
        """The boundary between two operators: all ranks may leave here together, until one of
        them is to change what a checkpoint holds.

        Raises:
            StepDropped: on every rank.
        """
        if self._droppable and self.stop.agree().at_once:
            raise StepDropped
        self._droppable = self._droppable and not pipeline.changes_state(name)
        self._enter(name)

    def _enter(self, name: str) -> None:
        """One operator ends and the next begins, for the watchdog, the view and the timers."""
        if self.workers.session.world.device != "cpu":
            torch.cuda.synchronize()
        self._stages.close()
        self.workers.session.enter(name)
        self.records.stage(name)
        if self.heartbeat is not None:
            self.heartbeat.beat(name, self._step_now)
            if self._step_now == 0:
                announce(name, self.config.metrics.terminal)
        self._stages.enter_context(self.timers(name))

    def _owes_evaluation(self, step: int) -> bool:
        """Whether the step is one to evaluate after, and that has not been done."""
        settings = self.config.evaluation
        is_due = settings.at_start
        if step > 0:
            is_due = settings.every > 0 and step % settings.every == 0
            is_due = is_due or (settings.wanted and step == self.config.steps)
        return is_due and self._evaluated < step
