"""Checkpoints of several tasks on one actor."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

from verl_hpc.api.checkpoints import find_step, load_step, reference_fingerprint, save_step
from verl_hpc.api.tasks.shared import SharedModels, renamed
from verl_hpc.api.tasks.task import Task
from verl_hpc.checkpoint.read import Step
from verl_hpc.checkpoint.schema import step_number
from verl_hpc.checkpoint.store import complete_steps, point_latest, prune
from verl_hpc.config.role import REFERENCE
from verl_hpc.data.order import Position
from verl_hpc.engines.shared_module import OptimizerPath
from verl_hpc.errors import CheckpointError, ConfigError
from verl_hpc.step.number import Number
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.state import Progress

_logger = logging.getLogger(__name__)
AWAY = "rolled_back_"
"""Prefix of the directories of later steps than the one that training went back to."""


class Checkpoints:
    """Steps with the shared actor and critic, and with the head and optimizers of each task:
    `actor`, `critic`, `TASK_actor` and `TASK_critic`. Only a training that resumes from one of the
    steps in the directory adds to them.

    Args:
        models: what tasks share.
        tasks: all tasks by name.
        directory: steps are in its `checkpoints`.
        keep: newest steps that stay, and as many of those that were put away; None keeps all.
        namespace: prefix of temporary files.
    """

    def __init__(
        self,
        models: SharedModels,
        tasks: Mapping[str, Task],
        directory: Path,
        keep: int | None,
        namespace: str | None,
    ) -> None:
        self._models, self._keep, self._namespace = models, keep, namespace
        self.root = directory / "checkpoints"
        self._claimed = self._loaded = False
        first = next(iter(tasks.values())).run
        roles = dict(models.roles(first))
        for name, task in tasks.items():
            for kind, role in task.run.roles.items():
                if isinstance(role.training, OptimizerPath):
                    roles[f"{name}_{kind}"] = renamed(role, f"{name}_{kind}", role.training)
        has_reference = any(REFERENCE in task.run.roles for task in tasks.values())
        # All tasks with a KL divergence take it from the same weights.
        fingerprint = reference_fingerprint(models.weights) if has_reference else {}
        self._run: RunContext = replace(first, roles=roles, numbers={}, fingerprint=fingerprint)

    def steps(self) -> list[Path]:
        """Return the steps in the directory, newest first."""
        return complete_steps(self.root)

    def claim(self, step: int) -> None:
        """Put later steps away, once, before training continues from a step.

        Raises:
            ConfigError: there are steps, and none was loaded.
        """
        if self._claimed:
            return
        steps = self.steps()
        if steps and not self._loaded:
            raise ConfigError(
                f"Trainer: {self.root} has steps up to {steps[0].name}; call load_checkpoint() to "
                "go on from there, or set another name or output_dir in tasks.yaml"
            )
        self._claimed = True
        self._put_away_after(step)

    def before(self, step: int) -> Path | None:
        """Return the newest step that is not after `step`, or the oldest; None without any."""
        steps = self.steps()
        old = [path for path in steps if (step_number(path) or 0) <= step]
        return next(iter(old or steps[-1:]), None)

    def save(self, step: int, state: Mapping[str, float]) -> Path:
        """Write a step with everything that training resumes from.

        Raises:
            CheckpointError: it could not be written.
            ConfigError: the directory has steps of another training.
        """
        self.claim(step)
        place = self._run.place("actor")
        self._run.numbers = {name: Number(value, place) for name, value in state.items()}
        models, progress = self._models, Progress(step, Position())
        path = save_step(
            self._run, progress, self.root, models.actor, models.tokenizer, self._namespace
        )
        if self._keep is not None:
            prune(self.root, self._keep, step)
        return path

    def load(self, path: str | Path | None = None) -> tuple[int, dict[str, float]]:
        """Fill everything; return the number of steps done, and the state that was saved.

        Raises:
            CheckpointError, ConfigError: there is no step, or it is of other tasks or models, or
                had other weights as the reference of its KL divergence.
        """
        step = Step(find_step(self.root if path is None else Path(path)))
        expected = {f"{name}{part}" for name in self._run.roles for part in ("", ".optimizer")}
        other = expected.symmetric_difference(step.components)
        if other:
            raise CheckpointError(
                f"{step.path} is of other tasks or models: it and tasks.yaml differ in "
                f"{', '.join(sorted(other))}; give it the tasks that it was saved with"
            )
        progress = load_step(self._run, step.path)
        self._loaded, self._claimed = True, False
        return progress.step, dict(step.state.numbers)

    def _put_away_after(self, step: int) -> None:
        """Rename later steps, so that nothing resumes from them; the newest stay."""
        for path in self.steps():
            if (step_number(path) or 0) > step:
                away = path.with_name(f"{AWAY}{path.name}")
                rmtree(away, ignore_errors=True)
                path.rename(away)
                _logger.warning("training goes on from step %s; renamed to %s", step, away)
                path.with_name(f"step_{step_number(path)}").unlink(missing_ok=True)
        away_paths = sorted(self.root.glob(f"{AWAY}*"), key=lambda path: path.stat().st_mtime_ns)
        for path in away_paths[: -self._keep] if self._keep is not None else ():
            rmtree(path, ignore_errors=True)
        if self.steps():
            point_latest(self.steps()[0])
