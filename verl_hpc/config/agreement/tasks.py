"""Checks of sections tasks, mix and guards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import ceil, fsum
from typing import Any

from verl_hpc.config.explain import near_or_all
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.config.sections import RunSections
from verl_hpc.config.tasks import GuardConfig, MixConfig

_MAY_BE_UNREAD = ("algorithm", "batch", "critic", "distillation", "reward")
_OF_RESPONSES = ("reward", "num_samples", "temperature", "structured")


def check_mix(config: RunSections) -> Mapping[str, RunSections]:
    """Check what tasks share, and return the run as each of them trains.

    Raises:
        ValueError: shares that do not sum to 1 or leave no room for the least one, or a setting
            that a run with tasks, or none of its tasks, can honour.
    """
    if not config.tasks:
        if config.mix != MixConfig():
            raise ValueError("mix has no effect without tasks; leave it out")
        return {}
    if config.steps is None:
        raise ValueError(
            f"epochs = {config.epochs} with tasks, which have data of their own; give steps"
        )
    if config.rollout.staleness > 1:
        raise ValueError(
            f"rollout.staleness = {config.rollout.staleness} with tasks: the responses of one task "
            "are in flight at a time; choose at most 1"
        )
    _check_shares(config)
    tasks = config.by_task
    for name, task in tasks.items():
        _check_task(config, name, task)
    _check_read(config, tasks)
    return tasks


def _check_shares(config: RunSections) -> None:
    tasks, least, most = config.tasks, config.mix.min_weight, 1 / len(config.tasks)
    if least > most:
        raise ValueError(
            f"mix.min_weight = {least:g} for {len(tasks)} tasks, whose shares sum to 1; choose at "
            f"most {most:g}"
        )
    given = [name for name, task in tasks.items() if task.schedule or task.weight is not None]
    if given and len(given) < len(tasks):
        name = next(name for name in tasks if name not in given)
        raise ValueError(
            f"tasks.{name}: has no weight, and {given[0]} has one; give all tasks a weight or a "
            "schedule, or none"
        )
    # Between the steps of all schedules shares change linearly, and so does their sum.
    for step in sorted({1}.union(*(task.schedule for task in tasks.values()))):
        total = fsum(task.share(step, most) for task in tasks.values())
        if abs(total - 1) > 1e-6:
            raise ValueError(
                f"tasks: the weights of {', '.join(tasks)} sum to {total:g} at step {step}; "
                "expected a sum of 1"
            )


def _check_task(config: RunSections, name: str, task: RunSections) -> None:
    own = config.tasks[name]
    if task.recipe == "reward_model":
        raise ValueError(
            f"tasks.{name}.recipe = reward_model, which does not train the actor; train the reward "
            "model in a run of its own"
        )
    unread = [n for n in _OF_RESPONSES if getattr(own, n) is not None]
    if unread and not task.samples_to_train:
        raise ValueError(
            f"tasks.{name}.{unread[0]} with recipe: {task.recipe}, which trains on no responses; "
            "leave it out"
        )
    if config.mix.by != "weight" and not task.has_advantages:
        raise ValueError(
            f"mix.by = {config.mix.by}: reads the scores of each task, and tasks.{name} with "
            f"recipe: {task.recipe} has none; choose by: weight"
        )


def _check_read(config: RunSections, tasks: Mapping[str, RunSections]) -> None:
    """Raises: ValueError: a setting that no task has taken from the run."""
    runs = list(tasks.values())
    _refuse_unread("recipe", config.recipe, [run.recipe for run in runs])
    _refuse_unread("data.train", config.data.train, [run.data.train for run in runs])
    for section in _MAY_BE_UNREAD:
        shared = getattr(config, section)
        if section == "reward" and config.evaluation.wanted:
            continue
        for name in type(shared).model_fields:
            readers = [type(shared)(), *(getattr(run, section) for run in runs)]
            read = [getattr(reader, name, None) for reader in readers]
            _refuse_unread(f"{section}.{name}", getattr(shared, name), read)
    sampling = [run.rollout for run in runs if run.samples_to_train]
    for name in ("num_samples", "temperature") if sampling else ():
        read = [getattr(rollout, name) for rollout in (RolloutConfig(), *sampling)]
        _refuse_unread(f"rollout.{name}", getattr(config.rollout, name), read)


def _refuse_unread(setting: str, value: Any, read: Sequence[Any]) -> None:
    if value not in read:
        raise ValueError(f"{setting}: no task reads it; leave it out")


def check_guards(config: RunSections) -> None:
    """Raises: ValueError: a guard watches what no step writes, or cannot go back."""
    for name, guard in config.guards.items():
        setting = f"guards.{name}"
        first, _, rest = guard.metric.partition("/")
        task = rest.partition("/")[0]
        if first == "task" and task not in config.tasks:
            near = (
                near_or_all(task, config.tasks, "tasks") if config.tasks else "there are no tasks"
            )
            raise ValueError(f"{setting}.metric = {guard.metric}: no such task; {near}")
        if first == "val" and not config.evaluation.wanted:
            raise ValueError(
                f"{setting}.metric = {guard.metric}: the run evaluates nothing; set "
                "evaluation.every, or watch another metric"
            )
        if guard.action == "rollback":
            _check_rollback(config, setting, guard, first == "val")


def _least_share(config: RunSections, setting: str, task: str) -> float:
    least, own = config.mix.min_weight, config.tasks[task]
    if config.mix.by == "weight":
        equal = 1 / len(config.tasks)
        least = max(least, min(own.share(step, equal) for step in {1, *own.schedule}))
    if not least:
        raise ValueError(
            f"{setting}.action = rollback: steps without tasks.{task} have no such metric, and its "
            "share may be 0; set mix.min_weight"
        )
    return least


def _check_rollback(
    config: RunSections, setting: str, guard: GuardConfig, is_evaluation: bool
) -> None:
    every, keep = config.checkpoint.every, config.checkpoint.keep
    if not every:
        raise ValueError(
            f"{setting}.action = rollback with checkpoint.every = 0, which saves no step to go "
            "back to; set checkpoint.every"
        )
    between: float = max(config.evaluation.every, 1) if is_evaluation else 1
    task, _, metric = guard.metric.removeprefix("task/").partition("/")
    if guard.metric.startswith("task/") and metric != "weight":  # which is in every step
        between = 1 / _least_share(config, setting, task)
    steps = ceil(guard.over * between)
    if (keep - 1) * every < steps:
        raise ValueError(
            f"{setting}.action = rollback: a fall is seen {steps} steps after it began, and then "
            f"checkpoint.keep = {keep} with checkpoint.every = {every} may have deleted all steps "
            f"before it; set checkpoint.keep to at least {-(-steps // every) + 1}"
        )
