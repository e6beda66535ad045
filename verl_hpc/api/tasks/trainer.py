"""Several tasks that train one actor: verl's tutorials' `Trainer`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_hpc.api.exporters import Exports, sink_of
from verl_hpc.api.namespace import namespaced
from verl_hpc.api.ranks import check_one_process
from verl_hpc.api.rewards import Reward
from verl_hpc.api.tasks.batches import TaskBatches
from verl_hpc.api.tasks.guard import Fall, Rollback, SafetyGuard
from verl_hpc.api.tasks.hybrid import hybrid_engine
from verl_hpc.api.tasks.progress import Checkpoints, Evaluation
from verl_hpc.api.tasks.scheduler import DynamicTaskWeightScheduler
from verl_hpc.api.tasks.settings import TasksConfig, load_tasks, parse_tasks
from verl_hpc.api.tasks.shared import SharedModels
from verl_hpc.api.tasks.task import Task
from verl_hpc.api.tasks.watch import Watch
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.data.problem import Problem
from verl_hpc.errors import ConfigError
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.sinks import Sink, Sinks

_logger = logging.getLogger(__name__)
TASKS = "tasks.yaml"
"""In the directory of a training: everything decided."""


class Trainer:
    """Trains one actor on several tasks, in one process.

    A step takes a batch of the data loader, and each task that has prompts in it takes its own step
    on them: it samples from the actor, scores, and updates the actor with an optimizer of its own
    (docs/multi_task.md).

    Args:
        actor: an `ActorModel`, or an AutoModelForCausalLM.
        critic: a `CriticModel`: tasks have a value head each on its decoder; None.
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
        self._evaluation = Evaluation()
        self._watch = Watch(self.config)
        self._scheduler: DynamicTaskWeightScheduler | None = None
        self._step, self._ended = 0, False
        self._claimed = self._loaded = False
        self._sinks = Sinks([])
        self._log: MetricsLog | None = None

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

    def train(self, num_steps: int | None = None) -> list[dict[str, float]]:
        """Take steps, `steps` of tasks.yaml in all if it is not said how many more.

        Returns:
            The metrics of every step. There are fewer where an alert has ended training, and more
            where a guard has taken it back.

        Raises:
            TrainingError, RewardError, DataError, CheckpointError: training cannot go on.
            ConfigError: the directory has steps of another training; or a guard or scheduler names
                a metric that there is not.
        """
        self._claim()
        last = self.config.steps if num_steps is None else self._step + num_steps
        found: list[dict[str, float]] = []
        self._ended = False
        if self._watch.guards and not self._checkpoints.steps():
            self.save_checkpoint()
        while self._step < last and not self._ended:
            found.append(self.step(self._batches.next()))
        return found

    def step(self, problems: Sequence[Problem]) -> dict[str, float]:
        """One step on given prompts, whose extra["task"] says which task each is of.

        Returns:
            `task/NAME/...` of every task that has some, `task/NAME/weight`, and of a rollback
            `guard/rollback_from`, `guard/rollback_to` and `guard/num_rollbacks`.

        Raises:
            DataError: a prompt of no task; and as `train`.
        """
        self._claim()
        by_task = self._batches.by_task(problems)
        metrics: dict[str, float] = {}
        for name, part in by_task.items():
            metrics |= self.tasks[name].step(part, self._step + 1)
        self._step += 1
        weights = self._batches.weights or {}
        metrics |= {f"task/{name}/weight": weight for name, weight in weights.items()}
        step, fallen = self._step, self._watch.look(self._step, metrics, by_task)
        if fallen is not None:
            metrics |= self._roll_back(*fallen)
        else:
            self._evaluate(metrics, by_task)
            every = self.config.checkpoint_every
            if every and self._step % every == 0:
                self.save_checkpoint()
        self._write(step, metrics, by_task)
        return metrics

    def _claim(self) -> None:
        """Once, before training: steps that are there are those that it goes on from.

        Raises:
            ConfigError: nothing was loaded, and there are some.
        """
        if self._claimed:
            return
        self._claimed, there = True, self._checkpoints.steps()
        if there and not self._loaded:
            self._claimed = False
            raise ConfigError(
                f"Trainer: {self._checkpoints.root} has steps up to {there[0].name}; call "
                "load_checkpoint() to go on from there, or set another name or output_dir in "
                "tasks.yaml"
            )
        self._checkpoints.put_away_after(self._step)

    def _evaluate(self, metrics: Mapping[str, float], learned: Iterable[str]) -> None:
        """Every so many steps tell the scheduler the means of what tasks are judged by.

        Args:
            learned: names of tasks that took a step.
        """
        if self._scheduler is None:
            return
        for name in learned:
            value = self._scheduler.value_of(name, metrics)
            if value is not None:
                self._evaluation.add(self._scheduler.key_of(name), value)
        if self._step % self.config.evaluate_every == 0:
            self._batches.set_weights(self._scheduler.update(self._evaluation.take()))

    def _write(
        self, step: int, metrics: Mapping[str, float], tasks: Mapping[str, Sequence[Problem]]
    ) -> None:
        if self._log is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._log = MetricsLog(self._directory, step - 1)
            (self._directory / TASKS).write_text(write_yaml(self.config.tree()), encoding="utf-8")
        self._log.write(step, metrics)
        for name in tasks:
            self._sinks.rewards(self.tasks[name].scores, name)
        self._sinks.write(step, metrics)
        for name in tasks:
            of = {key: metrics[f"task/{name}/{key}"] for key in ("reward", "tokens_per_second")}
            text = "step %s %s: %s prompts, reward %.4g, %.0f tokens/s"
            _logger.info(text, step, name, len(tasks[name]), *of.values())

    def set_task_scheduler(self, scheduler: DynamicTaskWeightScheduler) -> None:
        """Let a scheduler set the weights of tasks from now on, every `evaluate_every` steps; its
        initial weights take the place of others.

        Raises:
            ConfigError: it is of other tasks, or the data loader takes no weights.
        """
        there, here = set(scheduler.weights), set(self.tasks)
        if there != here:
            raise ConfigError(
                f"set_task_scheduler: initial_weights has {', '.join(sorted(there))}, and "
                f"tasks.yaml has {', '.join(sorted(here))}; give every task a weight"
            )
        self._batches.set_weights(scheduler.weights)
        self._scheduler = scheduler

    def add_guard(self, guard: SafetyGuard) -> None:
        """Have metrics watched; the first guard that sees a fall acts.

        Raises:
            ConfigError: checkpoints are not saved, or are gone before the guard needs them.
        """
        self._watch.add(guard, self._batches.weights or {})

    def _roll_back(self, guard: SafetyGuard, fall: Fall) -> dict[str, float]:
        """Go back, tell, and be other than before.

        Raises:
            TrainingError: it fell too often, or there is no checkpoint so old.
        """
        watch = self._watch
        step = watch.target(guard, fall, self._checkpoints)
        rollbacks, factor = watch.num_rollbacks + 1, watch.lr_factor * guard.lr_factor
        self.load_checkpoint(step)
        watch.num_rollbacks, watch.lr_factor = rollbacks, factor
        self._differ()
        self._claim()
        # With the number of rollbacks: a job that is killed now does not fall again.
        self.save_checkpoint()
        rollback = Rollback(fall, self._step, watch.seed, factor)
        self._ended = guard.alert(rollback) is False
        return {
            "guard/rollback_from": float(fall.step),
            "guard/rollback_to": float(self._step),
            "guard/num_rollbacks": float(rollbacks),
        }

    def add_metrics_exporter(self, exporter: Sink | Exports) -> None:
        """See `PPOTrainer.add_metrics_exporter`; a `MetricsExporter` has tasks as a label.

        Raises:
            ConfigError: as there; or it has told of metrics without that label.
        """
        self._sinks.add(sink_of(exporter, self.namespace, by_task=True))

    def enable_3d_hybrid_engine(self) -> str:
        """Say what serves as HybridFlow's 3D-HybridEngine here: in one process training and
        generation have the same weights in the same memory, so that there is nothing to reshard.

        Returns:
            What was logged.

        Raises:
            ConfigError: the process is one of several ranks, with what serves there.
        """
        text = hybrid_engine()
        _logger.info("%s", text)
        return text

    def save_checkpoint(self) -> Path:
        """Write a step below `checkpoints`: actor, critic, heads, optimizers, and where the data,
        the scheduler and guards are.

        Raises:
            CheckpointError: it could not be written.
            ConfigError: the directory has steps of another training.
        """
        self._claim()
        return self._checkpoints.save(self._step, self._state())

    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Go on from a step's directory, or from the newest one; the number of steps done.

        Raises:
            CheckpointError, ConfigError: there is none, or it is of other tasks or models.
        """
        self._step, state = self._checkpoints.load(path)
        self._loaded, self._claimed = True, False
        self._load_state(state)
        return self._step

    def _state(self) -> dict[str, float]:
        parts: dict[str, Mapping[str, float]] = {
            "data": self._batches.state(),
            "evaluation": self._evaluation.state(),
            **self._watch.state(),
        }
        if self._scheduler is not None:
            parts["scheduler"] = self._scheduler.state()
        for name, task in self.tasks.items():
            if task.condition is not None:
                parts[f"condition_{name}"] = task.condition.state()
        return {f"{part}/{key}": v for part, found in parts.items() for key, v in found.items()}

    def _load_state(self, state: Mapping[str, float]) -> None:
        parts: dict[str, dict[str, float]] = {}
        for key, value in state.items():
            part, _, name = key.partition("/")
            parts.setdefault(part, {})[name] = value
        self._watch.load_state(parts)
        self._differ()
        self._batches.load_state(parts["data"])
        self._evaluation.load_state(parts.get("evaluation", {}))
        if self._scheduler is not None:
            self._scheduler.load_state(parts.get("scheduler", {}))
            self._batches.set_weights(self._scheduler.weights)
        for name, task in self.tasks.items():
            if task.condition is not None:
                task.condition.load_state(parts.get(f"condition_{name}", {}))

    def _differ(self) -> None:
        """From the training that fell, if one did: by seed and learning rates."""
        for task in self.tasks.values():
            task.seed = self._watch.seed
            task.set_lr_factor(self._watch.lr_factor)
