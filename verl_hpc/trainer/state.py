"""Saving and restoring everything a run needs to go on as if it had never stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.run_state import OptimizerCounters, RunState
from verl_hpc.checkpoint.store import complete_steps, prune, remove_torn
from verl_hpc.checkpoint.write import Component, StepContents, save_step
from verl_hpc.config.load import dump_config
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Position
from verl_hpc.engines.factory import generator_states, restore_generators
from verl_hpc.engines.protocol import TrainingEngine
from verl_hpc.errors import CheckpointError, ConfigError, DamageError, agreed
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.layout.writers import assign_writers
from verl_hpc.runtime.session import Session
from verl_hpc.trainer.fingerprint import (
    DATA,
    FIRST_WEIGHTS,
    REWARD,
    change_of,
    changed,
    check_fingerprint,
)
from verl_hpc.trainer.workers import Workers
from verl_hpc.transfer.execute import Transfer

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Progress:
    """How far a run is; the same on all ranks."""

    step: int
    """Steps done."""
    position: Position
    """Of the training data."""


START = Progress(0, Position())


def checkpoint_root(config: RunConfig) -> Path:
    return config.run_directory / "checkpoints"


def has_steps(session: Session, config: RunConfig) -> bool:
    """Whether a run will go on from a step, or not start at all; every rank calls it."""
    steps = complete_steps(checkpoint_root(config)) if session.world.rank == 0 else []
    return session.control.broadcast(bool(steps))


def save(workers: Workers, progress: Progress) -> Path:
    """Write a step and let old ones go; every rank calls it.

    Raises:
        CheckpointError: on every rank, if it could not be written; earlier steps are intact.
        ConfigError: another process has taken over the run directory.
    """
    if workers.sync is not None:
        workers.sync.to_training()
    components = _engine_components("actor", workers.actor, workers)
    counters = {"actor": _counters(workers.actor)}
    if workers.critic is not None:
        components += _engine_components("critic", workers.critic, workers)
        counters["critic"] = _counters(workers.critic)
    state = RunState(
        step=progress.step,
        position=progress.position,
        kl_coefficient=workers.kl.coefficient if workers.kl.is_adaptive else None,
        optimizers=counters,
        fingerprint=workers.fingerprint,
    )
    contents = StepContents(
        state,
        dump_config(workers.config),
        workers.hf_files,
        generator_states(),
    )
    root = checkpoint_root(workers.config)
    check_owner = workers.lock.check if workers.lock is not None else lambda: None
    path = save_step(
        workers.session.control, root, progress.step, components, contents, check_owner
    )
    if workers.rank == 0:
        try:
            prune(root, workers.config.checkpoint.keep, progress.step)
        except OSError as error:
            _logger.warning("old steps below %s stay: %s", root, error)
    return path


def _engine_components(name: str, engine: TrainingEngine, workers: Workers) -> list[Component]:
    rank = workers.rank
    weights = Component(
        name, engine.shard_map, engine.weights, assign_writers(engine.shard_map)[rank]
    )
    everything = engine.optimizer_map()
    primary = engine.optimizer_map(primary=True)
    tensors = engine.optimizer_tensors()
    moments = Component(f"{name}.optimizer", everything, tensors, primary.held_by(rank))
    return [weights, moments]


def _counters(engine: TrainingEngine) -> OptimizerCounters:
    return OptimizerCounters(**engine.counters())


def restore(workers: Workers) -> Progress | None:
    """Go on from the newest step that can be read; None if the run is new.

    Raises:
        CheckpointError: on every rank, if there are steps and none can be read, the newest that can
            has another format or lacks what this run needs, or checkpoint.resume is must and there
            is none.
        ConfigError: checkpoint.resume is never and there are steps, or the newest that can be read
            is of another model or data set.
    """
    control = workers.session.control
    root = checkpoint_root(workers.config)
    mode = workers.config.checkpoint.resume
    if workers.rank == 0:
        remove_torn(root)
    steps = control.broadcast(complete_steps(root) if workers.rank == 0 else None)
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
    reasons: list[str] = []
    for path in steps:
        try:
            return _load(workers, path)
        except DamageError as error:
            reasons.append(str(error))
            if workers.rank == 0:
                _logger.warning("%s cannot be used, trying the step before: %s", path, error)
    raise agreed(
        CheckpointError(
            f"none of the {len(steps)} steps below {root} can be read: {'; '.join(reasons)}. Move "
            "them away to start over"
        )
    )


def _load(workers: Workers, path: Path) -> Progress:
    """Load one step; an error is raised on every rank or on none.

    Raises:
        DamageError: the step is not as it was written.
        CheckpointError, ConfigError: it is, but not for this run.
    """
    control = workers.session.control
    # One rank looks at every file; that many ranks asking for that many sizes would hurt.
    step = control.together(lambda: Step(path, check_files=workers.rank == 0))
    state = control.together(lambda: step.state)
    now = dict(workers.fingerprint)
    if workers.reference is None:  # nobody computes with the first weights any more
        now.pop(FIRST_WEIGHTS, None)
    force = workers.config.checkpoint.resume == "force"
    control.together(lambda: check_fingerprint(state.fingerprint, now, force))
    differs = set(changed(state.fingerprint, now))
    for name in differs.intersection(REWARD) if workers.rank == 0 else ():
        words = change_of(name, state.fingerprint, now)
        _logger.warning("scores cannot be compared with those before this start: %s", words)
    _load_engine(workers, step, "actor", workers.actor)
    if workers.critic is not None:
        _load_engine(workers, step, "critic", workers.critic)
    if step.num_ranks == workers.session.world.size:
        restore_generators(control.together(lambda: step.rank_arrays(workers.rank)))
    if workers.kl.is_adaptive and state.kl_coefficient is not None:
        workers.kl.coefficient = state.kl_coefficient
    workers.fingerprint = {**state.fingerprint, **now}
    if workers.kept is not None:
        workers.kept.load(control, path)
    return Progress(state.step, Position() if differs.intersection(DATA) else state.position)


def _load_engine(workers: Workers, step: Step, name: str, engine: TrainingEngine) -> None:
    control = workers.session.control
    weights = control.together(lambda: step.component(name))
    control.together(lambda: _check_model(step, name, weights, engine.shard_map))
    _fill(workers, step, weights, engine.shard_map, engine.weights, engine.dtype)
    state = control.together(lambda: step.component(f"{name}.optimizer"))
    tensors = engine.optimizer_tensors()
    _fill(workers, step, state, engine.optimizer_map(), tensors, torch.float32)
    engine.restore_counters(step.state.optimizers[name].model_dump())


def _check_model(step: Step, name: str, found: ShardMap, needed: ShardMap) -> None:
    def shapes(shard_map: ShardMap) -> dict[str, tuple[int, ...]]:
        return {tensor: spec.shape for tensor, spec in shard_map.tensors.items()}

    there, here = shapes(found), shapes(needed)
    for tensor in sorted(there.keys() | here.keys()):
        if there.get(tensor) != here.get(tensor):
            raise ConfigError(
                f"model.path: {step.path} is of another model: {tensor} of its {name} has shape "
                f"{there.get(tensor)}, of this configuration's {here.get(tensor)}; give the model "
                "that the run started with, or the run another name"
            )


def _fill(
    workers: Workers,
    step: Step,
    source: ShardMap,
    target: ShardMap,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
) -> None:
    world, control = workers.session.world, workers.session.control
    plan = control.together(lambda: plan_transfer(source, target, world.node_of))
    Transfer(plan, world.rank, step.reader()).run({}, tensors, dtype, control.together)
