"""Choose the task of each step: the same on all ranks without communication, and after restarts."""

from __future__ import annotations

from collections.abc import Mapping
from random import Random

from verl_hpc.checkpoint.run_state import TaskState
from verl_hpc.config.run import RunConfig
from verl_hpc.config.tasks import MixConfig


def shares(config: RunConfig, states: Mapping[str, TaskState], step: int) -> dict[str, float]:
    """Return each task's share of the steps at a step; they sum to 1.

    Scores count once every task has had two steps. Where they leave nothing, as where all tasks
    succeed, the weights count alone.

    Args:
        config: a run with tasks.
        states: state of each task.
    """
    equal = 1 / len(config.tasks)
    given = {name: task.share(step, equal) for name, task in config.tasks.items()}
    wanted = given
    if all(states[name].num_steps >= 2 for name in given):
        urgent = {name: _urgency(config.mix, states[name]) for name in given}
        wanted = {name: weight * urgent[name] for name, weight in given.items()}
    return floored(wanted if sum(wanted.values()) > 0 else given, config.mix.min_weight)


def _urgency(mix: MixConfig, state: TaskState) -> float:
    if state.score is None or state.slow_score is None:
        return 1.0
    if mix.by == "success":
        return 1 - min(max(state.score, 0.0), 1.0)
    return abs(state.score - state.slow_score)


def floored(weights: Mapping[str, float], least: float) -> dict[str, float]:
    """Scale weights to a sum of 1, raising those below `least` to it."""
    low: set[str] = set()
    while True:
        total = sum(weight for name, weight in weights.items() if name not in low)
        rest = 1 - least * len(low)
        scaled = {
            name: least if name in low or not total else weight * rest / total
            for name, weight in weights.items()
        }
        below = {name for name, weight in scaled.items() if weight < least}
        if not below:
            return scaled
        low |= below


def choose(config: RunConfig, states: Mapping[str, TaskState], step: int) -> str:
    """Return the task of a step, drawn with `shares` from the seed and the step alone."""
    chosen = shares(config, states, step)
    # Python promises to keep the seeding by a text, and this sequence.
    drawn = Random(f"{config.seed}/task/{step}").random()  # noqa: S311
    for name, share in chosen.items():
        drawn -= share
        if drawn < 0:
            return name
    return max(chosen, key=chosen.__getitem__)


def with_score(state: TaskState, score: float | None, decay: float) -> TaskState:
    """Return a task's state after one of its steps; a step without a score changes no mean."""
    changes: dict[str, float] = {"num_steps": state.num_steps + 1}
    if score is not None:
        changes["score"] = _mean(state.score, score, decay)
        changes["slow_score"] = _mean(state.slow_score, score, (1 + decay) / 2)
    return state.model_copy(update=changes)


def _mean(mean: float | None, value: float, decay: float) -> float:
    return value if mean is None else decay * mean + (1 - decay) * value
