"""Restore everything that a run needs to continue as if it had never stopped."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path

import torch

from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.run_state import TaskState
from verl_hpc.checkpoint.store import complete_steps, remove_torn
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Position
from verl_hpc.engines.generators import restore_generators
from verl_hpc.errors import CheckpointError, ConfigError, DamageError, agreed
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.runtime.session import Session
from verl_hpc.step.role import Role
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.fill import fill
from verl_hpc.trainer.fingerprint import (
    DATA,
    FIRST_WEIGHTS,
    MAY_CHANGE,
    REWARD,
    SAME_AS_FIRST,
    change_of,
    changed,
    check_fingerprint,
)
from verl_hpc.trainer.made_ahead import take_up

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a run is; equal on all ranks."""

    step: int
    """Number of finished steps."""
    position: Position
    """Position in the training data."""
    tasks: Mapping[str, TaskState] = field(default_factory=dict)
    """States of tasks by name, which have positions of their own; empty without tasks."""
    next_task: str = ""
    """Task of the next step, which may have been generated ahead."""


START = Progress(0, Position())


def checkpoint_root(config: RunConfig) -> Path:
    return config.run_directory / "checkpoints"


def has_steps(session: Session, config: RunConfig) -> bool:
    """Whether the run has a step to resume from; every rank calls it."""
    steps = complete_steps(checkpoint_root(config)) if session.world.rank == 0 else []
    return session.control.broadcast(bool(steps))


def restore(run: RunContext) -> Progress | None:
    """Resume from the newest step that can be read; None if the run is new.

    Raises:
        CheckpointError: on every rank, if no existing step can be read, the newest readable one has
            another format or lacks what this run needs, or checkpoint.resume is must without steps.
        ConfigError: checkpoint.resume is never and there are steps, or the newest readable one is
            of another model or data set.
    """
    control = run.session.control
    root = checkpoint_root(run.config)
    mode = run.config.checkpoint.resume
    if run.rank == 0:
        remove_torn(root)
    steps = control.broadcast(complete_steps(root) if run.rank == 0 else None)
    if not steps:
        if mode in ("must", "force"):
            raise agreed(CheckpointError(f"checkpoint.resume = {mode}, and {root} has no steps"))
        return None
    if mode == "never":
        raise agreed(
            ConfigError(
                f"checkpoint.resume = never, and {root} has steps up to {steps[0].name}; choose "
                "another name, delete them, or set checkpoint.resume to auto"
            )
        )
    # Newest first; a damaged step is skipped, any other error is final.
    reasons: list[str] = []
    for path in steps:
        try:
            return load_step_directory(run, path)
        except DamageError as error:
            reasons.append(str(error))
            if run.rank == 0:
                _logger.warning("%s cannot be used, trying the step before: %s", path, error)
    raise agreed(
        CheckpointError(
            f"none of the {len(steps)} steps below {root} can be read: {'; '.join(reasons)}. Move "
            "them away to start over"
        )
    )


def load_step_directory(run: RunContext, path: Path) -> Progress:
    """Load one step; errors are raised on all ranks.

    Raises:
        DamageError: the step is damaged.
        CheckpointError, ConfigError: the step does not fit this run.
    """
    control = run.session.control
    # One rank looks at every file; that many ranks asking for that many sizes would hurt.
    step = control.together(lambda: Step(path, check_files=run.rank == 0))
    state = control.together(lambda: step.state)
    now = dict(run.fingerprint)
    if SAME_AS_FIRST not in now.values():  # nobody computes with the first weights any more
        now.pop(FIRST_WEIGHTS, None)
    force = run.config.checkpoint.resume == "force"
    control.together(lambda: check_fingerprint(state.fingerprint, now, force))
    differs = set(changed(state.fingerprint, now))
    for name in differs.intersection(MAY_CHANGE) if run.rank == 0 else ():
        words = change_of(name, state.fingerprint, now)
        what = "scores" if name in REWARD else "metrics"
        _logger.warning("%s cannot be compared with those before this start: %s", what, words)
    # The weights and optimizers first, then the small state that they belong to.
    for role in run.trained:
        _load_role(run, step, role)
    if step.num_ranks == run.session.world.size:
        restore_generators(control.together(lambda: step.rank_arrays(run.rank)))
    if run.kl.is_adaptive and state.kl_coefficient is not None:
        run.kl.coefficient = state.kl_coefficient
    for name, of_task in state.tasks.items():
        if of_task.kl_coefficient is not None and run.tasks[name].kl.is_adaptive:
            run.tasks[name].kl.coefficient = of_task.kl_coefficient
    for name, number in run.numbers.items():
        number.value = state.numbers.get(name, number.value)
    if state.template_time:
        run.encoder.template.time = datetime.fromisoformat(state.template_time)
    run.fingerprint = {**state.fingerprint, **now}
    same_data = not differs.intersection(DATA)
    take_up(run, step, same_data)
    if run.rollout is not None and run.rollout.kept is not None:
        run.rollout.kept.load(control, path)
    tasks = dict(state.tasks)
    if not same_data:
        tasks = {n: s.model_copy(update={"position": Position()}) for n, s in tasks.items()}
    position = state.position if same_data else Position()
    return Progress(state.step, position, tasks, state.next_task)


def _load_role(run: RunContext, step: Step, role: Role) -> None:
    """Fill weights and optimizer state; every rank takes part, with or without an engine."""
    control, engine = run.session.control, role.training
    weights = control.together(lambda: step.component(role.name))
    control.together(lambda: _check_model(step, role, weights))
    tensors: Mapping[str, torch.Tensor] = engine.weights if engine else {}
    fill(run.session, weights, step.reader(), role.trained_map, tensors)
    if engine is not None:
        engine.weights_changed()
    state = control.together(lambda: step.component(f"{role.name}.optimizer"))
    needed, tensors = role.state_map, {}
    if engine is not None:
        needed, tensors = engine.optimizer_map(), engine.optimizer_tensors()
    fill(run.session, state, step.reader(), needed, tensors)
    if engine is not None:
        engine.restore_counters(step.state.optimizers[role.name].model_dump())


def _check_model(step: Step, role: Role, found: ShardMap) -> None:
    def shapes(shard_map: ShardMap) -> dict[str, tuple[int, ...]]:
        return {tensor: spec.shape for tensor, spec in shard_map.tensors.items()}

    there, here = shapes(found), shapes(role.trained_map)
    _check_adapters(step, role, there, here)
    for tensor in sorted(there.keys() | here.keys()):
        if there.get(tensor) != here.get(tensor):
            raise ConfigError(
                f"model.path: {step.path} is of another model: {tensor} of its {role.name} has "
                f"shape {there.get(tensor)}, of this configuration's {here.get(tensor)}; give the "
                "model that the run started with, or the run another name"
            )


def _check_adapters(step: Step, role: Role, there: Collection[str], here: Collection[str]) -> None:
    words = {True: "adapters", False: "all weights"}
    was, now = (any(".lora_" in name for name in names) for names in (there, here))
    if was is not now:
        raise ConfigError(
            f"lora: {step.path} holds {words[was]} of its {role.name}, and this configuration "
            f"trains {words[now]}; give back what it was, or give the run another name"
        )
