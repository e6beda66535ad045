"""The training loop: take steps, evaluate and save until the run is over."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from operator import add

import torch

from verl_hpc.checkpoint.schema import step_name
from verl_hpc.config.regular_file import replace_text
from verl_hpc.errors import VerlHpcError
from verl_hpc.flow import Pipeline, StepCancelled
from verl_hpc.flow.picture import flow_text
from verl_hpc.metrics.names import ENERGY, STEP_SECONDS
from verl_hpc.metrics.sections import FLOW_FILE
from verl_hpc.placement.bases import shared_bases_text
from verl_hpc.runs.lives import LifeRecord
from verl_hpc.runtime.startup import announce
from verl_hpc.runtime.stop import StepDropped, StopRequest
from verl_hpc.step.metrics import memory_metrics
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.evaluate import evaluate, evaluate_by
from verl_hpc.trainer.guards import Action, Guards
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.records import ENDS, Outcome, Records, Result
from verl_hpc.trainer.saves import Saves
from verl_hpc.trainer.state import START, Progress, checkpoint_root
from verl_hpc.trainer.steps import Steps
from verl_hpc.trainer.tasks import TaskSteps


class Loop:
    """Takes a recipe's steps, evaluates and saves until the run is over."""

    def __init__(
        self, run: RunContext, recipe: Recipe, records: Records, life: LifeRecord | None = None
    ) -> None:
        assert run.stop is not None
        self.run, self.config, self.stop = run, run.config, run.stop
        self.recipe, self.records, self._life = recipe, records, life
        self._droppable = False
        self._evaluated = -1
        """Newest step with an evaluation."""
        self._saves: Saves
        self._rollout_has: int | None = None
        """Step whose weights the rollout engine has."""
        enter, refit = self._enter_operator, self._weights_to_rollout
        self._steps = (
            TaskSteps(run, recipe.of_tasks, enter, refit)
            if recipe.of_tasks
            else Steps(run, recipe, enter, refit)
        )
        self.guards: Guards
        if run.rollout is not None:
            run.rollout.wants_to_leave = lambda: (
                self._droppable and self.stop.stop_request().at_once
            )
            self.stop.reads_requests |= run.rollout.place.leads
        pictures = [flow.pipeline(run.num_steps) for flow in recipe.of_tasks.values() or [recipe]]
        if run.rank == 0:
            told = [*map(flow_text, pictures), *shared_bases_text(run.layouts.bases)]
            replace_text(self.config.run_directory / FLOW_FILE, "\n".join(told) + "\n")

    def to_the_end(self, progress: Progress) -> Result:
        """Take all remaining steps, and save the last.

        A step is saved before its weights are sent to the rollout engine, and they are sent only if
        an evaluation or the next step generates with them.

        On an error that all ranks raise, a save under way is finished first.
        """
        self.guards = Guards(self.run, progress.step)
        self._saves = Saves(self.run, progress.step)
        self.run.let_change = self._saves.writer.let_change
        try:
            return self._to_the_end(progress)
        except VerlHpcError as error:
            if error.agreed:
                self._saves.finish_after(error)
            raise

    def _to_the_end(self, progress: Progress) -> Result:
        # A resumed run may have been stopped between a step and its evaluation.
        self._evaluated = self.run.session.control.broadcast(self.records.last_evaluated)
        owed: dict[str, float] = {}
        if self.guards.need_first_weights and progress is START:
            self._enter("save_checkpoint")
            self._saves.begin(progress)
        if self._owes_evaluation(progress.step):
            owed = self._evaluate(progress.step)
            self._record(progress.step, dict(owed))
        begin = self.stop.agree_to_begin()
        outcome = self._outcome(progress, owed if progress.step else {}, begin)
        outcome = self._guarded(self.guards.look(progress.step, owed), progress, outcome)
        while not outcome:
            step = progress.step + 1
            self.records.begin_step(step)
            try:
                progress, metrics = self._step(step, progress)
            except StepCancelled:
                self._write_trace()
                self._save_for_good(progress)
                if self._saves.writer.newest == progress.step:
                    self._keep_responses(progress.step)
                outcome = self._outcome(progress, {}, self.stop.agree())
                break
            action = self.guards.look(step, metrics)
            if action == "rollback":
                self._record(step, metrics)
                self._write_trace()
                outcome = action
                break
            due = self._owes_evaluation(step) + self._owes_evaluation(step + 1)
            stop_request = self.stop.agree(step, due)
            self._save_if_due(progress, stop_request)
            if self._owes_evaluation(step) and not stop_request.at_once:
                metrics |= self._evaluate(step)
            if not stop_request.leaves:
                self._keep_caches()
            outcome = self._outcome(progress, metrics, stop_request)
            if outcome == "goal reached":
                self._save_for_good(progress)
            self._record(step, metrics)
            self._write_trace()
            outcome = self._guarded(self.guards.look(step, metrics) or action, progress, outcome)
        assert outcome is not None, "a step is dropped only where ranks agreed to leave"
        self._enter("end")
        self._saves.finish()
        if outcome not in ("restart", "rollback"):
            self.stop.honoured()
        reason = self.stop.reason or str(self.guards.violation or "")
        return Result(progress, outcome, "" if outcome in ENDS else reason)

    def _save_if_due(self, progress: Progress, stop_request: StopRequest) -> None:
        step, every = progress.step, self.config.checkpoint.every
        if (
            stop_request is StopRequest.SAVE
            or stop_request.leaves
            or (every and step % every == 0)
            or step == self.run.num_steps
        ):
            self._save(progress)
        else:
            self._saves.look()
        if stop_request is StopRequest.SAVE:
            self._saves.finish()
            self.stop.honoured(stop_request)

    def _guarded(
        self, action: Action, progress: Progress, outcome: Outcome | None
    ) -> Outcome | None:
        """Return the outcome of a step whose metrics guards have looked at."""
        if action == "rollback" and outcome in (None, "finished"):
            return "rollback"
        if action == "stop" and outcome in (None, "restart"):
            self._save_for_good(progress)
            return "stopped"
        return outcome

    def _outcome(
        self, progress: Progress, metrics: Mapping[str, float], stop_request: StopRequest
    ) -> Outcome | None:
        """Return why to stop after this step, or None.

        A run that must stop at once has not evaluated its last step, and so is not finished.
        """
        goal = self.config.evaluation.stop_at
        if progress.step >= self.run.num_steps and not self._owes_evaluation(progress.step):
            return "finished"
        if goal is not None and metrics.get("val/score/mean", goal - 1) >= goal:
            return "goal reached"
        if stop_request.leaves:
            return "stopped" if stop_request.for_good else "restart"
        return None

    def _step(self, step: int, progress: Progress) -> tuple[Progress, dict[str, float]]:
        begin = time.monotonic()
        self._droppable = True
        if self._life is not None:
            self._life.begin_step()
        stepped = self._steps.take(step, progress)
        if self._life is not None:
            self._life.end_step()
        self.stop.took(step=time.monotonic() - begin, save=self._saves.writer.seconds)
        self.records.samples(step, "train", stepped.samples)
        self.records.rewards(stepped.rewards, stepped.task)
        return stepped.progress, stepped.metrics

    def _weights_to_rollout(self, step: int) -> dict[str, float]:
        """Send a step's weights to the rollout engine, unless it has them already."""
        if self._rollout_has == step:
            return {}
        self._enter("reshard")
        assert self.run.sync is not None and self.run.rollout is not None
        metrics = self.run.sync.to_generation()
        self._rollout_has = self.run.rollout.version = step
        return metrics

    def _evaluate(self, step: int) -> dict[str, float]:
        begin, self._evaluated = time.monotonic(), step
        # The tasks' first recipe stands for the run, but not in an evaluation.
        own = None if self.recipe.of_tasks else self.recipe.evaluation
        metrics = self._weights_to_rollout(step) if own is None or own.generates else {}
        self._enter("testing")
        if own is not None:
            # One of its operators may take the device, and with it the weights, from the engine.
            self._rollout_has = None
            metrics |= evaluate_by(own, self.run, step)
        else:
            scores, samples = evaluate(self.run, step)
            self.records.samples(step, "evaluation", samples)
            metrics |= scores
        self.stop.took(evaluation=time.monotonic() - begin)
        return metrics

    def _save(self, progress: Progress) -> None:
        """Start saving the step unless it is saved already; the rollout engine loses its
        weights."""
        if progress.step <= self._saves.writer.newest:
            return
        self._enter("save_checkpoint")
        self._rollout_has = None
        self._saves.begin(progress)

    def _save_for_good(self, progress: Progress) -> None:
        """Save synchronously; retry a failed background save once."""
        self._saves.finish()
        self._save(progress)
        self._saves.finish()

    def _keep_caches(self) -> None:
        """Pack the compile caches for the next start now, as there may be no time at the end."""
        if self.run.caches is not None and self.run.caches.is_due():
            self._enter("keep_caches")
            self.run.caches.pack()

    def _keep_responses(self, saved: int) -> None:
        """Save finished responses in the directory of the step whose weights generated them, if it
        exists."""
        rollout, control = self.run.rollout, self.run.session.control
        step = checkpoint_root(self.config) / step_name(saved)
        if rollout is None or rollout.kept is None:
            return
        if control.broadcast(step.is_dir()):
            place = rollout.place
            leads = place.is_here and place.leads_group
            rollout.kept.save(control, step, place.index if leads else 0, leads)

    def _record(self, step: int, metrics: dict[str, float]) -> None:
        self.records.pause()
        if (freed := self.run.session.freed_memory) is not None:
            freed.limit()
        # All ranks' figures combined on rank 0, and the rank's own elsewhere.
        mine = self.records.meters.drain() | memory_metrics()
        metrics |= combined(self.run.session.control.gather(mine)) or mine
        if "perf/total_num_tokens" in metrics:
            seconds = metrics[STEP_SECONDS]
            of_a_rank = metrics["perf/total_num_tokens"] / self.run.session.world.size
            metrics["perf/throughput"] = of_a_rank / seconds
            metrics["perf/time_per_step"] = seconds
        if self._saves.writer.seconds:
            metrics["perf/save_seconds"] = self._saves.writer.seconds
        self.records.write(step, metrics)

    def _write_trace(self) -> None:
        traces = self.records.traces
        if traces is not None and traces.stop():
            self._enter("write_profile")
            traces.write()

    def _enter_operator(self, pipeline: Pipeline, step: int, name: str, place: str) -> None:
        """Start an operator. If all ranks run every operator they may drop the step here together,
        until an operator has changed a checkpoint's state.

        Raises:
            StepDropped: on every rank.
        """
        meet = not self.run.layouts.is_split
        if meet and self._droppable and self.stop.agree().at_once:
            raise StepDropped
        self._droppable = not pipeline.changed.get(name, not self._droppable)
        self._enter(name, place, step)

    def _enter(self, name: str, place: str = "all", step: int | None = None) -> None:
        """End the previous stage and start the next, for watchdog and records."""
        if self.run.session.world.device != "cpu":
            torch.cuda.synchronize()
        self.run.session.enter(name)
        self.records.stage(name, place, step)
        if self.records.step_now == 0 and self.records.heartbeat is not None:
            announce(name, self.config.metrics.terminal)

    def _owes_evaluation(self, step: int) -> bool:
        """Whether an evaluation is due after the step and has not been done."""
        settings = self.config.evaluation
        is_due = settings.at_start
        if step > 0:
            is_due = settings.every > 0 and step % settings.every == 0
            is_due = is_due or (step == self.run.num_steps and settings.wanted)
        return is_due and self._evaluated < step


def combined(gathered: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Combine ranks' figures by name: the largest seconds and memory, and the sum of joules."""
    together: dict[str, float] = {}
    for of_rank in gathered:
        for name, value in of_rank.items():
            join = add if name.startswith(ENERGY) else max
            together[name] = join(together[name], value) if name in together else value
    return together
