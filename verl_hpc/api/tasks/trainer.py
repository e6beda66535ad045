"""Several tasks that train one actor: verl's tutorials' `Trainer`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_hpc.api.exporters import Exports
from verl_hpc.api.namespace import namespaced
from verl_hpc.api.ranks import check_one_process
from verl_hpc.api.rewards import Reward
from verl_hpc.api.tasks.batches import TaskBatches
from verl_hpc.api.tasks.evaluation import Evaluation
from verl_hpc.api.tasks.guard import MetricDrop, Rollback, SafetyGuard
from verl_hpc.api.tasks.guards import Guards
from verl_hpc.api.tasks.progress import Checkpoints
from verl_hpc.api.tasks.records import Records
from verl_hpc.api.tasks.scheduler import DynamicTaskWeightScheduler
from verl_hpc.api.tasks.settings import TasksConfig, load_tasks, parse_tasks
from verl_hpc.api.tasks.shared import SharedModels
from verl_hpc.api.tasks.state import joined, split
from verl_hpc.api.tasks.task import Task
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.data.problem import Problem
from verl_hpc.errors import ConfigError, NotFiniteError, ScoreNotFiniteError
from verl_hpc.metrics.sinks import Sink
from verl_hpc.section import NonNegative

_logger = logging.getLogger(__name__)


class Trainer:
    """Trains one actor on several tasks, in one process.

    A step takes a batch of the data loader, and each task that has prompts in it takes its own step
    on them: it samples from the actor, scores, and updates the actor with an optimizer of its own
    (docs/multi_task.md).

    Args:
        actor: an `ActorModel`, or an AutoModelForCausalLM.
        critic: a `CriticModel`, or an AutoModelForCausalLM, of whose decoder a copy is taken: tasks
            have a value head each on it; None.
        dataloader: what `get_dataloader` gives; or an iterable of batches, lists of rows with the
            columns task, prompt and, where it is known, answer or ground_truth.
        config_path: tasks.yaml, or its settings as a mapping.
        tokenizer: of both; None takes the one that the actor was loaded with.
        rewards: by task, a function as reward_fn of `PPOTrainer`.
        constraints: by task of type constrained_decoding, a list of texts, a regular expression, a
            function as transformers' prefix_allowed_tokens_fn, or a language model.
        namespace: prefix of the names of metrics, and of the directories of the training and of
            temporary files.

    Raises:
        ConfigError, ModelError, RewardError, DataError: what cannot be honoured, with what serves
            instead; several ranks.
    """

    @checked
    def __init__(
        self,
        actor: Any,
        critic: torch.nn.Module | None,
        dataloader: Any,
        config_path: str | Path | Mapping[str, Any] = "tasks.yaml",
        tokenizer: Any = None,
        *,
        rewards: Mapping[str, Reward] | None = None,
        constraints: Mapping[str, Any] | None = None,
        namespace: str | None = None,
    ) -> None:
        check_one_process("Trainer")
        self.namespace = namespaced(namespace)
        self.config: TasksConfig = (
            parse_tasks(config_path)
            if isinstance(config_path, Mapping)
            else load_tasks(config_path)
        )
        for setting, given in (("rewards", rewards or {}), ("constraints", constraints or {})):
            self._check_names(setting, given)
        self.models = SharedModels(actor, critic, tokenizer)
        self.tasks = {
            name: Task(
                name,
                task,
                self.models,
                self.config.seed,
                (rewards or {}).get(name),
                (constraints or {}).get(name),
            )
            for name, task in self.config.tasks.items()
        }
        self._batches = TaskBatches(dataloader, self.config)
        self._directory = Path(self.config.output_dir) / self.namespace / self.config.name
        self._checkpoints = Checkpoints(
            self.models, self.tasks, self._directory, self.config.keep, self.namespace
        )
        self._evaluation = Evaluation(self._batches, self.config.evaluate_every, self.tasks)
        self._guards = Guards(self.config)
        self._records = Records(self.config, self._directory, self.namespace, self.tasks)
        self._step, self._ended = 0, False

    def _check_names(self, setting: str, names: Mapping[str, Any]) -> None:
        for name in names:
            if name not in self.config.tasks:
                near = near_or_all(name, self.config.tasks, "tasks")
                raise ConfigError(f"{setting}[{name!r}]: tasks.yaml has no such task; {near}")

    @property
    def global_step(self) -> int:
        """Steps done; a rollback takes it back."""
        return self._step

    @property
    def task_weights(self) -> Mapping[str, float] | None:
        """Shares of the prompts; None where the data loader does not tell."""
        return self._batches.weights

    @property
    def directory(self) -> Path:
        """Of metrics.jsonl, checkpoints, and tasks.yaml as it was understood."""
        return self._directory

    @checked
    def train(self, num_steps: NonNegative | None = None) -> list[dict[str, float]]:
        """Take steps, `steps` of tasks.yaml in all if it is not said how many more.

        Returns:
            The metrics of every step. There are fewer where an alert has ended training, and more
            where a guard has taken it back.

        Raises:
            TrainingError, RewardError, DataError, CheckpointError: training cannot go on.
            ConfigError: the directory has steps of another training; or a guard or scheduler names
                a metric that there is not.
        """
        self._checkpoints.claim(self._step)
        last = self.config.steps if num_steps is None else self._step + num_steps
        found: list[dict[str, float]] = []
        self._ended = False
        if self._guards and not self._checkpoints.steps():
            self.save_checkpoint()
        while self._step < last and not self._ended:
            found.append(self.step(self._batches.next()))
        return found

    @checked
    def step(self, problems: Sequence[Problem]) -> dict[str, float]:
        """One step on given prompts, whose extra["task"] says which task each is of.

        Returns:
            `task/NAME/...` of every task that has some, `task/NAME/weight`; of a rollback
            `guard/rollback_from` and `guard/rollback_to`, and from then on `guard/num_rollbacks`.

        Raises:
            DataError: a prompt of no task; and as `train`.
        """
        self._checkpoints.claim(self._step)
        by_task = self._batches.by_task(problems)
        metrics: dict[str, float] = {}
        learned: dict[str, int] = {}
        fallen = None
        for name, part in by_task.items():
            try:
                metrics |= self.tasks[name].step(part, self._step + 1)
            except (NotFiniteError, ScoreNotFiniteError) as error:
                fallen = self._guards.not_finite(self._step + 1, name, error)
                if fallen is None:
                    raise
                break
            learned[name] = len(part)
        self._step += 1
        weights = self._batches.weights or {}
        metrics |= {f"task/{name}/weight": weight for name, weight in weights.items()}
        step, fallen = self._step, fallen or self._guards.look(self._step, metrics, learned)
        if fallen is not None:
            metrics |= self._roll_back(*fallen)
        else:
            self._evaluation.look(step, metrics, by_task)
            every = self.config.checkpoint_every
            if every and self._step % every == 0:
                self.save_checkpoint()
        if self._guards.num_rollbacks:
            metrics["guard/num_rollbacks"] = float(self._guards.num_rollbacks)
        self._records.write(step, metrics, learned)
        return metrics

    @checked
    def set_task_scheduler(self, scheduler: DynamicTaskWeightScheduler) -> None:
        """Let a scheduler set the weights of tasks from now on, every `evaluate_every` steps; its
        initial weights take the place of others.

        Raises:
            ConfigError: it is of other tasks, or the data loader takes no weights.
        """
        self._evaluation.set_scheduler(scheduler)

    @checked
    def add_guard(self, guard: SafetyGuard) -> None:
        """Have metrics watched; the first guard that sees a fall acts.

        Raises:
            ConfigError: it was added before; checkpoints are not saved, or are gone before the
                guard needs them; or the data loader's batches are.
        """
        self._batches.check_goes_back()
        self._guards.add(guard, self._batches.weights or {})

    def _roll_back(self, guard: SafetyGuard, fall: MetricDrop) -> dict[str, float]:
        """Go back, tell, and be other than before.

        Raises:
            TrainingError: it fell too often, or there is no checkpoint so old.
        """
        guards = self._guards
        step = guards.target(guard, fall, self._checkpoints)
        rollbacks, factor = guards.num_rollbacks + 1, guards.lr_factor * guard.lr_factor
        self.load_checkpoint(step)
        guards.num_rollbacks, guards.lr_factor = rollbacks, factor
        self._differ()
        # With the number of rollbacks: a job that is killed now does not fall again.
        self.save_checkpoint()
        rollback = Rollback(fall, self._step, guards.seed, factor)
        self._ended = guard.alert(rollback) is False
        return {
            "guard/rollback_from": float(fall.step),
            "guard/rollback_to": float(self._step),
        }

    def add_metrics_exporter(self, exporter: Sink | Exports) -> None:
        """See `PPOTrainer.add_metrics_exporter`; a `MetricsExporter` has tasks as a label.

        Raises:
            ConfigError: as there; or it has told of metrics without that label.
        """
        self._records.add(exporter)

    def enable_3d_hybrid_engine(self) -> str:
        """Say what serves as HybridFlow's 3D-HybridEngine here: in one process training and
        generation have the same weights in the same memory, so that there is nothing to reshard.

        Returns:
            What was logged.
        """
        text = (
            "3D hybrid engine: one process, in which training and generation share the weights of "
            "one module: there is one layout, and nothing to reshard"
        )
        _logger.info("%s", text)
        return text

    def save_checkpoint(self) -> Path:
        """Write a step below `checkpoints`: actor, critic, heads, optimizers, and where the data,
        the scheduler and guards are.

        Raises:
            CheckpointError: it could not be written.
            ConfigError: the directory has steps of another training.
        """
        return self._checkpoints.save(self._step, self._state())

    @checked
    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Go on from a step's directory, or from the newest one; the number of steps done.

        Raises:
            CheckpointError, ConfigError: there is none, or it is of other tasks or models.
        """
        self._step, state = self._checkpoints.load(path)
        self._load_state(state)
        return self._step

    def _state(self) -> dict[str, float]:
        parts: dict[str, Mapping[str, float]] = {
            "data": self._batches.state(),
            **self._evaluation.state(),
            **self._guards.state(),
        }
        for name, task in self.tasks.items():
            if task.condition is not None:
                parts[f"condition_{name}"] = task.condition.state()
        return joined(parts)

    def _load_state(self, state: Mapping[str, float]) -> None:
        parts = split(state)
        self._guards.load_state(parts)
        self._differ()
        self._batches.load_state(parts["data"])
        self._evaluation.load_state(parts)
        for name, task in self.tasks.items():
            if task.condition is not None:
                task.condition.load_state(parts.get(f"condition_{name}", {}))

    def _differ(self) -> None:
        """From the training that fell, if one did: by seed and learning rates."""
        for task in self.tasks.values():
            task.seed = self._guards.seed
            task.set_lr_factor(self._guards.lr_factor)
