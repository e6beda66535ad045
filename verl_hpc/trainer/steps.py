"""Take a recipe's steps; with staleness the next step is generated while one trains."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from verl_hpc.data.order import Position
from verl_hpc.flow import Pipeline, StepCancelled, Values
from verl_hpc.metrics.names import WAIT
from verl_hpc.metrics.samples import SampleGroup
from verl_hpc.runtime.stop import StepDropped
from verl_hpc.step.batch import Scores, StepRows
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.look import join_samples, step_samples
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.state import Progress

Enter = Callable[[Pipeline, int, str, str], object]
"""Callback with (pipeline, step, operator, placement) before an operator starts."""
MakeNext = Callable[[int, Position], None]


@dataclass(frozen=True)
class StepResult:
    """Result of a step; metrics, samples and rewards are complete on rank 0."""

    progress: Progress
    metrics: dict[str, float]
    samples: list[SampleGroup]
    rewards: Sequence[float]
    """Scores of all responses, if a sink shows their distribution."""
    task: str = ""
    """Name of the task that the step was of; empty without tasks."""


@dataclass(frozen=True)
class _Batch:
    """Values generated ahead for a step."""

    step: int
    position: Position
    """Where the next step's rows begin."""
    values: Values
    metrics: Mapping[str, float]


class Steps:
    """Runs a recipe's flow.

    Args:
        run: the run, with roles and placements.
        recipe: the flow of a step.
        enter: see `Enter`.
        refit: sends the weights of a step to the rollout engines; returns metrics.
    """

    def __init__(
        self,
        run: RunContext,
        recipe: Recipe,
        enter: Enter,
        refit: Callable[[int], dict[str, float]],
    ) -> None:
        self._run, self._recipe, self._enter, self._refit = run, recipe, enter, refit
        self._next: _Batch | None = None
        self._generates = recipe.generates
        self._is_ahead = self._generates and run.config.rollout.staleness > 0
        self._leads = any(place.leads for place in run.places.values())

    def take(self, step: int, progress: Progress, make_next: MakeNext | None = None) -> StepResult:
        """Run a step; every rank calls it.

        Args:
            make_next: called with the next step and the position behind this one's rows, in place
                of `make_ahead`.

        Raises:
            StepCancelled: a rank is preempted before the step has changed any state.
        """
        if self._is_ahead:
            return self._take_made_ahead(step, progress, make_next or self.make_ahead)
        metrics = self._refit(progress.step) if self._generates else {}
        rows, position = self._run.order.take(progress.position, self._run.config.batch.asked)
        pipeline = self._recipe.pipeline(step)
        self._recipe.metrics.clear()
        values = pipeline.begin(rows=StepRows(step, rows, behind=position, task=self._run.task))
        if self._run.layouts.is_split:
            first, rest = pipeline.before_changes
            self._try(first, step, values)
            self._resume(rest, step, values)
        else:
            self._resume(pipeline, step, values)
        mine = dict(self._recipe.metrics)
        if self._run.config.batch.refill_rounds:
            position = self._behind(values, position)
        return self._collect(Progress(step, position), metrics, mine, values)

    def _behind(self, values: Values, position: Position) -> Position:
        """Return where the next step's rows begin after dynamic sampling; every rank calls it."""
        rollout, asked = self._run.rollout, values.made.get("asked")
        assert rollout is not None
        position_there = asked.behind if isinstance(asked, StepRows) else None
        return (
            self._run.session.control.broadcast(position_there, root=rollout.place.ranks[0])
            or position
        )

    def make_ahead(self, step: int, position: Position) -> None:
        """Generate for a step while another trains, with rollout.staleness."""
        if self._is_ahead:
            self._next = self._make(step, position)

    def _take_made_ahead(self, step: int, progress: Progress, make_next: MakeNext) -> StepResult:
        """Train on the values generated ahead, while generating ranks generate the next step's."""
        metrics = self._refit(progress.step)
        if self._next is None:
            self._next = self._make(step, progress.position)
            self._meet(step, self._next is None)
        batch, self._next = self._next, None
        assert batch is not None and batch.step == step
        _, rest = self._parts(step)
        self._recipe.metrics.clear()
        self._resume(rest, step, batch.values)
        mine = {**batch.metrics, **self._recipe.metrics}
        if step < self._run.num_steps:
            make_next(step + 1, batch.position)
        # Here all ranks meet, with the next step made.
        return self._collect(Progress(step, batch.position), metrics, mine, batch.values)

    def _make(self, step: int, position: Position) -> _Batch | None:
        """Run the operators that need no training rank; None if a rank is preempted, so that all
        stop after the step under way."""
        ahead, _ = self._parts(step)
        rows, behind = self._take_rows(step, position)
        self._recipe.metrics.clear()
        values = ahead.begin(rows=rows)
        try:
            self._resume(ahead, step, values)
        except StepCancelled:
            return None
        return _Batch(step, behind, values, dict(self._recipe.metrics))

    def _try(self, pipeline: Pipeline, step: int, values: Values) -> None:
        """Run the operators before any state changes; then all ranks meet, and drop the step if one
        is preempted."""
        abandoned = False
        try:
            self._resume(pipeline, step, values)
        except StepCancelled:
            abandoned = True
        self._meet(step, abandoned)

    def _meet(self, step: int, abandoned: bool) -> None:
        """Raises: StepDropped: on every rank, if one has abandoned the step or is preempted."""
        self._enter(self._recipe.pipeline(step), step, WAIT, "all")
        stop = self._run.stop
        preempted = stop is not None and stop.stop_request().at_once
        if self._run.session.control.any(abandoned or preempted):
            raise StepDropped

    def _take_rows(self, step: int, position: Position) -> tuple[StepRows, Position]:
        """Take the rows of a step, and of the steps whose responses may be in flight with it."""
        config, upcoming = self._run.config, []
        rows, behind = self._run.order.take(position, config.batch.asked)
        last = min(step + config.rollout.staleness - 1, self._run.num_steps)
        later = behind
        for number in range(step + 1, last + 1):
            more, later = self._run.order.take(later, config.batch.asked)
            upcoming.append(StepRows(number, more, task=self._run.task))
        return StepRows(step, rows, upcoming, task=self._run.task), behind

    def _parts(self, step: int) -> tuple[Pipeline, Pipeline]:
        """Split a step's pipeline into the operators that can run ahead, and the rest."""
        pipeline = self._recipe.pipeline(step)
        busy = {rank for role in self._run.trained for rank in role.place.ranks}
        made, names = {"rows"}, set()
        for run in pipeline.runs:
            # A checkpoint is of the step that trains, whatever has been made ahead of it.
            ahead = not run.operator.changes_state
            ahead = ahead and busy.isdisjoint(self._run.ranks[run.operator.placement])
            if ahead and made.issuperset(pipeline.needs(run)):
                made.update(run.operator.gives)
                names.add(run.operator.name)
        return pipeline.split(names)

    def _resume(self, pipeline: Pipeline, step: int, values: Values) -> None:
        enter = partial(self._enter, self._recipe.pipeline(step), step)
        pipeline.resume(values, self._run.rank, self._run.exchange, enter)

    def _collect(
        self,
        progress: Progress,
        metrics: Mapping[str, float],
        mine: Mapping[str, float],
        values: Values,
    ) -> StepResult:
        """Gather metrics of all ranks' operators, and samples for people to read, on rank 0.

        Ranks that lead no group or placement add nothing, and send nothing.
        """
        if self._run.layouts.is_split:
            self._enter(self._recipe.pipeline(progress.step), progress.step, WAIT, "all")
        # Else the sequences are the data's, and no response of the model.
        look = step_samples(self._run, values.made) if self._generates else {}
        rewards: Sequence[float] = ()
        scores = values.made.get("scores")
        if (
            self._leads
            and isinstance(scores, Scores)
            and self._run.config.metrics.prometheus is not None
        ):
            rewards = tuple(scores.values)
        said = (mine if self._leads else {}, look, rewards) if self._leads or look else None
        together, looks = dict(metrics), []
        for part in self._run.session.control.gather(said):
            if part is not None:
                of_rank, look, of_rank_rewards = part
                together |= of_rank
                looks.append(look)
                # Every rank that has them has the same.
                rewards = rewards or of_rank_rewards
        return StepResult(progress, together, join_samples(looks), rewards)
