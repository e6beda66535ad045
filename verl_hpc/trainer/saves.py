"""Save everything that a run needs to continue as if it had never stopped."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path

from verl_hpc.checkpoint.run_state import AdapterState, OptimizerCounters, RunState, TaskState
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.checkpoint.step_files import Component, StepContents
from verl_hpc.checkpoint.store import prune
from verl_hpc.checkpoint.write import StepWriter, save_step
from verl_hpc.config.load import dump_config
from verl_hpc.engines.generators import generator_states
from verl_hpc.errors import CheckpointError, VerlHpcError
from verl_hpc.layout.shard_map import Region, ShardMap
from verl_hpc.layout.writers import assign_writers
from verl_hpc.step.placement import Placement
from verl_hpc.step.role import Role
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.made_ahead import ahead_key, made_ahead
from verl_hpc.trainer.prompt_form import CHAT, PROMPT_FORM
from verl_hpc.trainer.state import Progress, checkpoint_root
from verl_hpc.trainer.sync import offloads_of

_logger = logging.getLogger(__name__)


class Saves:
    """The saves of a run, at most one of them under way. All ranks call every method together.

    Every method handles a failed save as checkpoint.on_write_failure says.

    Args:
        run: the run, with trained roles and `checkpoint` settings.
        saved: the newest step with a checkpoint.

    Raises (every method):
        CheckpointError: on every rank, if a step could not be written; earlier ones are intact.
        ConfigError: another process has taken over the run directory.
    """

    def __init__(self, run: RunContext, saved: int = 0) -> None:
        settings = run.config.checkpoint
        self._run, self._goes_on = run, settings.on_write_failure == "continue"
        check_owner = run.lock.check if run.lock is not None else lambda: None
        self.writer = StepWriter(
            run.session.control,
            checkpoint_root(run.config),
            settings.background,
            check_owner,
            self._prune,
            saved,
        )
        self._parts = [_Parts(role, run.rank) for role in run.trained]

    def begin(self, progress: Progress) -> None:
        """Save a step; with checkpoint.background it is written while the run continues."""
        self.finish()
        run = self._run
        if run.sync is not None:
            run.sync.to_training()
        components = [component for parts in self._parts for component in parts.components()]
        contents = StepContents(
            _state(run, progress),
            self._config,
            run.hf_files,
            generator_states(),
            run.own_files,
            made_ahead(run, progress.step),
        )
        with self._failing(progress.step):
            self.writer.begin(progress.step, components, contents, self._stays)

    def look(self) -> None:
        """Advance a save that all ranks have written; call at the end of a step."""
        with self._failing(self.writer.newest):
            self.writer.look()

    def finish(self) -> None:
        """Wait for the save under way, if there is one."""
        with self._failing(self.writer.newest):
            self.writer.finish()

    def finish_after(self, error: VerlHpcError) -> None:
        """Wait for the save under way after `error`; log, not raise, an error of the save."""
        try:
            self.finish()
        except VerlHpcError as second:
            _logger.warning("after %s: %s", type(error).__name__, second)

    @contextmanager
    def _failing(self, step: int) -> Iterator[None]:
        try:
            yield
        except CheckpointError as error:
            if not self._goes_on:
                raise
            if self._run.rank == 0:
                _logger.warning("continuing without a checkpoint of step %s: %s", step, error)

    @cached_property
    def _config(self) -> str:
        return dump_config(self._run.config) if self._run.rank == 0 else ""

    @cached_property
    def _stays(self) -> bool:
        """Whether saved tensors keep memory and contents until a model computes."""
        goes = any(parts for _, parts in offloads_of(self._run.trained))
        return self._run.session.world.device == "cpu" and not goes

    def _prune(self, step: int) -> None:
        root = checkpoint_root(self._run.config)
        try:
            prune(root, self._run.config.checkpoint.keep, step)
        except OSError as error:
            _logger.warning("old steps below %s stay: %s", root, error)


def _state(run: RunContext, progress: Progress) -> RunState:
    """Return the run's small state after a step; every rank calls it."""
    return RunState(
        step=progress.step,
        position=progress.position,
        kl_coefficient=_kl_coefficient(run),
        optimizers={role.name: _counters(run, role) for role in run.trained},
        tasks={
            name: progress.tasks.get(name, TaskState()).model_copy(
                update={"kl_coefficient": _kl_coefficient(task)}
            )
            for name, task in run.tasks.items()
        },
        next_task=progress.next_task,
        numbers={name: _at_place(run, n.place, n.value) for name, n in run.numbers.items()},
        template_time=run.encoder.template.time.isoformat(),
        turn_end=run.encoder.turn_end if run.fingerprint.get(PROMPT_FORM) == CHAT else None,
        fingerprint=run.fingerprint,
        ahead=ahead_key(run.config),
        adapters={role.name: a for role in run.trained if (a := _adapter(role)) is not None},
    )


def save(run: RunContext, progress: Progress) -> Path:
    """Write one step synchronously and return its directory; every rank calls it.

    Raises:
        CheckpointError, ConfigError: see `Saves`.
    """
    saves = Saves(run)
    saves.begin(progress)
    saves.finish()
    return checkpoint_root(run.config) / step_name(progress.step)


def save_parts(
    run: RunContext, progress: Progress, root: Path, optimizer: bool, state: bool
) -> Path:
    """Write one step below another directory synchronously; return its directory.

    Args:
        root: parent directory of steps.
        optimizer: whether to write the optimizers' state.
        state: whether to write the state that a run resumes from.

    Raises:
        CheckpointError: it could not be written; existing steps are intact.
    """
    parts = [component for role in run.trained for component in _Parts(role, run.rank).components()]
    kept = parts if optimizer else parts[::2]
    contents = StepContents(hf_files=run.hf_files, own_files=run.own_files)
    if state:
        contents = replace(
            contents,
            state=_state(run, progress),
            config=dump_config(run.config),
            rank_arrays=generator_states(),
            ahead=made_ahead(run, progress.step),
        )
    return save_step(run.session.control, root, progress.step, kept, contents)


class _Parts:
    """Weights and optimizer state of a role to save, empty on ranks outside its placement.

    Which regions a rank writes is computed once per run.
    """

    def __init__(self, role: Role, rank: int) -> None:
        self._role, self._rank = role, rank

    def components(self) -> tuple[Component, Component]:
        """Return the role's components with its current tensors."""
        name, engine, (weights, states) = self._role.name, self._role.training, self._maps
        mine = engine.weights if engine is not None else {}
        moments = engine.optimizer_tensors() if engine is not None else {}
        return (
            Component(name, weights, mine, self._weights),
            Component(f"{name}.optimizer", states, moments, self._states),
        )

    @cached_property
    def _maps(self) -> tuple[ShardMap, ShardMap]:
        engine = self._role.training
        if engine is None:
            return self._role.trained_map, self._role.state_map
        return engine.trained_map, engine.optimizer_map(primary=True)

    @cached_property
    def _weights(self) -> Sequence[Region]:
        engine = self._role.training
        return assign_writers(engine.trained_map)[self._rank] if engine is not None else ()

    @cached_property
    def _states(self) -> Sequence[Region]:
        return self._maps[1].held_by(self._rank)


def _counters(run: RunContext, role: Role) -> OptimizerCounters:
    """Return a role's optimizer counters on every rank."""
    mine = role.training.counters() if role.training is not None else None
    if not role.place.is_world:
        mine = run.session.control.broadcast(mine, root=role.place.ranks[0])
    assert mine is not None
    return OptimizerCounters(**mine)


def _adapter(role: Role) -> AdapterState | None:
    lora = role.settings.lora
    if lora is None:
        return None
    # Resolved, since `latest` of another run will point elsewhere later.
    base = str(Path(role.settings.model.path).resolve())
    return AdapterState(base=base, rank=lora.rank, alpha=lora.alpha)


def _kl_coefficient(run: RunContext) -> float | None:
    """Return an adaptive controller's current coefficient, from the ranks that updated it; None if
    it is fixed."""
    if not run.kl.is_adaptive:
        return None
    _, coefficient = max(run.session.control.allgather((run.kl.num_updates, run.kl.coefficient)))
    return coefficient


def _at_place(run: RunContext, place: Placement, mine: float) -> float:
    """Broadcast a placement's value to all ranks."""
    return mine if place.is_world else run.session.control.broadcast(mine, root=place.ranks[0])
