"""Saving and restoring everything a run needs to go on as if it had never stopped."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from verl_hpc.checkpoint.read import Hdf5Reader, Step
from verl_hpc.checkpoint.store import complete_steps, prune
from verl_hpc.checkpoint.weights import hf_files
from verl_hpc.checkpoint.write import Component, StepContents, save_step
from verl_hpc.config.load import dump_config
from verl_hpc.config.run import RunConfig
from verl_hpc.data.order import Position
from verl_hpc.engines.megatron.engine import MegatronEngine
from verl_hpc.engines.megatron.parallel import generator_states, restore_generators
from verl_hpc.errors import CheckpointError, ConfigError
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.layout.writers import assign_writers
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


def save(workers: Workers, progress: Progress) -> Path:
    """Write a step and let old ones go; every rank calls it.

    Raises:
        CheckpointError: on every rank, if it could not be written; earlier steps are intact.
    """
    if workers.sync is not None:
        workers.sync.to_training()
    components = _engine_components("actor", workers.actor, workers)
    counters = {"actor": _counters(workers.actor)}
    if workers.critic is not None:
        components += _engine_components("critic", workers.critic, workers)
        counters["critic"] = _counters(workers.critic)
    state = {
        "step": progress.step,
        "position": progress.position.to_dict(),
        "num_rows": len(workers.train_source),
        "kl_coefficient": workers.kl.coefficient,
        "optimizers": counters,
    }
    contents = StepContents(
        state,
        dump_config(workers.config),
        hf_files(workers.hf_directory),
        generator_states(),
    )
    root = checkpoint_root(workers.config)
    path = save_step(workers.session.control, root, progress.step, components, contents)
    if workers.rank == 0:
        prune(root, workers.config.checkpoint.keep)
    return path


def _engine_components(name: str, engine: MegatronEngine, workers: Workers) -> list[Component]:
    assert engine.optimizer is not None
    rank = workers.rank
    weights = Component(
        name, engine.shard_map, engine.weights, assign_writers(engine.shard_map)[rank]
    )
    everything = engine.optimizer_map()
    primary = engine.optimizer_map(primary=True)
    tensors = engine.optimizer.state_tensors()
    moments = Component(f"{name}.optimizer", everything, tensors, primary.held_by(rank))
    return [weights, moments]


def _counters(engine: MegatronEngine) -> dict[str, int]:
    assert engine.optimizer is not None
    return engine.optimizer.counters()


def restore(workers: Workers) -> Progress | None:
    """Go on from the newest step that can be read; None if the run is new.

    Raises:
        CheckpointError: on every rank, if there are steps and none can be read, or
            checkpoint.resume is must and there is none.
        ConfigError: checkpoint.resume is never and there are steps.
    """
    control = workers.session.control
    root = checkpoint_root(workers.config)
    mode = workers.config.checkpoint.resume
    steps = control.broadcast(complete_steps(root) if workers.rank == 0 else None)
    if not steps:
        if mode == "must":
            raise _agreed(CheckpointError(f"checkpoint.resume = must, and {root} has no steps"))
        return None
    if mode == "never":
        raise _agreed(
            ConfigError(
                f"checkpoint.resume = never, and {root} has steps up to {steps[0].name}; choose "
                "another name, delete them, or set checkpoint.resume to auto"
            )
        )
    reasons: list[str] = []
    for path in steps:
        try:
            return _load(workers, path)
        except CheckpointError as error:
            reasons.append(str(error))
            if workers.rank == 0:
                _logger.warning("%s cannot be used, trying the step before: %s", path, error)
    raise _agreed(
        CheckpointError(
            f"none of the {len(steps)} steps below {root} can be read: {'; '.join(reasons)}. Move "
            "them away to start over"
        )
    )


def _agreed(error: Any) -> Any:
    error.agreed = True
    return error


def _load(workers: Workers, path: Path) -> Progress:
    """Load one step; a CheckpointError is raised on every rank or on none."""
    control = workers.session.control
    # One rank looks at every file; that many ranks asking for that many sizes would hurt.
    control.together(lambda: Step(path, check_files=workers.rank == 0))
    step = control.together(lambda: Step(path, check_files=False))
    state = step.state
    _load_engine(workers, step, "actor", workers.actor, state["optimizers"])
    if workers.critic is not None:
        _load_engine(workers, step, "critic", workers.critic, state["optimizers"])
    if step.num_ranks == workers.session.world.size:
        restore_generators(control.together(lambda: step.rank_arrays(workers.rank)))
    workers.kl.coefficient = state["kl_coefficient"]
    if state["num_rows"] != len(workers.train_source):
        raise _agreed(
            ConfigError(
                f"data.train has {len(workers.train_source)} rows, the run so far used one of "
                f"{state['num_rows']}; give the same data set, or another run name"
            )
        )
    if workers.kept is not None:
        workers.kept.load(control, path)
    return Progress(state["step"], Position.from_dict(state["position"]))


def _load_engine(
    workers: Workers, step: Step, name: str, engine: MegatronEngine, counters: Mapping[str, Any]
) -> None:
    assert engine.optimizer is not None
    control = workers.session.control
    weights = control.together(lambda: step.component(name))
    _fill(workers, weights, engine.shard_map, engine.weights, engine.dtype)
    state = control.together(lambda: step.component(f"{name}.optimizer"))
    tensors = engine.optimizer.state_tensors()
    _fill(workers, state, engine.optimizer_map(), tensors, torch.float32)
    engine.optimizer.restore_counters(counters[name])


def _fill(
    workers: Workers,
    source: ShardMap,
    target: ShardMap,
    tensors: Mapping[str, torch.Tensor],
    dtype: torch.dtype,
) -> None:
    world, control = workers.session.world, workers.session.control
    plan = control.together(lambda: plan_transfer(source, target, world.node_of))
    Transfer(plan, world.rank, Hdf5Reader()).run({}, tensors, dtype, control.together)
