"""Several tasks that train one actor in turn: the run as each of them sees it, and their steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, replace

from verl_hpc.checkpoint.run_state import TaskState
from verl_hpc.config.run import RunConfig
from verl_hpc.data.mixed import order_of
from verl_hpc.data.order import Position
from verl_hpc.metrics.names import SCORE, TASK
from verl_hpc.rewards.scorer import make_scorer
from verl_hpc.step.problems import open_problems
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.mix import choose, shares, with_score
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.run_parts import RunParts, kl_controller
from verl_hpc.trainer.state import Progress
from verl_hpc.trainer.steps import Enter, StepResult, Steps

_OF_ALL = ("perf/", "reshard/")
"""Beginnings of names of metrics that tell nothing about a task."""


@dataclass
class TaskRun(RunContext):
    """A run as one of its tasks sees it: settings, data, reward and KL controller are the task's,
    all else is the run's."""

    whole: RunContext | None = None

    def prepare(self) -> None:
        """See `RunParts.prepare`; what it needs is only set in the whole run, later than this."""
        assert self.whole is not None
        self.whole.prepare()


def open_tasks(run: RunContext) -> dict[str, RunContext]:
    """Return the run as each of its tasks sees it; every rank calls it.

    Raises:
        DataError, RewardError: on every rank, if a task's data or reward cannot be used.
    """
    return {name: _open(run, name, task) for name, task in run.config.by_task.items()}


def _open(run: RunContext, name: str, config: RunConfig) -> RunContext:
    shared = {part.name: getattr(run, part.name) for part in fields(RunParts)}
    own_train = run.config.tasks[name].train is not None
    train = f"tasks.{name}.train" if own_train else "data.train"
    problems = open_problems(run.session, config, run.encoder, train)
    setting = f"tasks.{name}.reward" if run.config.tasks[name].reward is not None else "reward"
    reward = None
    if config.generates:
        reward = run.session.control.together(lambda: make_scorer(config.reward, setting))
    own = {
        "task": name,
        "config": config,
        "roles": {role: run.roles[role] for role in config.role_settings},
        "problems": problems,
        "order": order_of(problems.train, config.seed, config.data.shuffle),
        "reward": reward,
        "kl": kl_controller(config.algorithm.kl),
        "numbers": {},
    }
    return TaskRun(**shared | own, whole=run)


class TaskSteps:
    """Takes the steps of a run with tasks, each a step of one of them.

    Args:
        run: the run, with its tasks.
        recipes: recipe of each task.
        enter: see `Enter`.
        refit: sends the weights of a step to the rollout engines; returns metrics.
    """

    def __init__(
        self,
        run: RunContext,
        recipes: Mapping[str, Recipe],
        enter: Enter,
        refit: Callable[[int], dict[str, float]],
    ) -> None:
        self._run, self._config = run, run.config
        for task in run.tasks.values():
            task.stop = run.stop
        self._steps = {n: Steps(run.tasks[n], r, enter, refit) for n, r in recipes.items()}

    def take(self, step: int, progress: Progress) -> StepResult:
        """Run a step; every rank calls it.

        Returns:
            The result; metrics of the task are there by their names, and below task/NAME/.

        Raises:
            StepCancelled: see `Steps.take`.
        """
        states = {name: progress.tasks.get(name, TaskState()) for name in self._steps}
        # What is generated ahead is of the next task, before this step's score is known.
        name = progress.next_task or choose(self._config, states, step)
        following = choose(self._config, states, step + 1)

        def make_next(number: int, position: Position) -> None:
            rows_from = position if following == name else states[following].position
            self._steps[following].make_ahead(number, rows_from)

        before = Progress(step - 1, states[name].position)
        result = self._steps[name].take(step, before, make_next)
        weights = shares(self._config, states, step)
        states[name] = self._state_after(states[name], result)
        own = {n: v for n, v in result.metrics.items() if not n.startswith(_OF_ALL)}
        metrics = result.metrics | {f"{TASK}{name}/{n}": v for n, v in own.items()}
        metrics |= {f"{TASK}{n}/weight": weight for n, weight in weights.items()}
        progress = Progress(step, Position(), states, following)
        return replace(result, progress=progress, metrics=metrics, task=name)

    def _state_after(self, state: TaskState, result: StepResult) -> TaskState:
        score, mix = None, self._config.mix
        if mix.by != "weight":
            score = self._run.session.control.broadcast(result.metrics.get(SCORE))
        updated = with_score(state, score, mix.decay)
        return updated.model_copy(update={"position": result.progress.position})
