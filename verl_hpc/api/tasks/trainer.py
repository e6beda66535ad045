"""Several tasks that train one actor: verl's tutorials' `Trainer`."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from verl_hpc.api.exporters import Exports, sink_of
from verl_hpc.api.namespace import Namespace
from verl_hpc.api.ranks import check_one_process
from verl_hpc.api.rewards import Reward
from verl_hpc.api.tasks.guards import Guards, MetricDrop, Rollback, SafetyGuard
from verl_hpc.api.tasks.progress import Checkpoints
from verl_hpc.api.tasks.scheduler import DynamicTaskWeightScheduler
from verl_hpc.api.tasks.settings import TasksConfig, load_tasks
from verl_hpc.api.tasks.shared import SharedModels
from verl_hpc.api.tasks.state import joined, split
from verl_hpc.api.tasks.task import Task
from verl_hpc.config.arguments import checked
from verl_hpc.config.explain import near_or_all
from verl_hpc.config.plain_yaml import write_yaml
from verl_hpc.config.regular_file import replace_text
from verl_hpc.data.problem import Problem
from verl_hpc.errors import ConfigError, DataError, NotFiniteError, ScoreNotFiniteError
from verl_hpc.metrics.log import MetricsLog
from verl_hpc.metrics.sinks import Sink, Sinks
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
        dataloader: what `get_dataloader` gives.
        config_path: tasks.yaml, or its settings as a mapping.
        tokenizer: tokenizer of both; None takes the one that the actor was loaded with.
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
        namespace: Namespace = None,
    ) -> None:
        check_one_process("Trainer")
        self.namespace, self.config = namespace, load_tasks(config_path)
        given, limits = dict(rewards or {}), dict(constraints or {})
        self._check_names(rewards=given, constraints=limits)
        self.models = SharedModels(actor, critic, tokenizer)
        self.tasks = {
            name: Task(name, task, self.models, self.config.seed, given.get(name), limits.get(name))
            for name, task in self.config.tasks.items()
        }
        if not isinstance(getattr(dataloader, "weights", None), Mapping):
            raise ConfigError(
                f"dataloader is {type(dataloader).__name__}; expected what get_dataloader gives"
            )
        self._check_same("dataloader", dataloader.weights)
        self._loader = dataloader
        self.directory = Path(self.config.output_dir) / (namespace or "") / self.config.name
        """Directory of metrics.jsonl, checkpoints, and tasks.yaml as it was understood."""
        self._checkpoints = Checkpoints(
            self.models, self.tasks, self.directory, self.config.keep, namespace
        )
        self._scheduler: DynamicTaskWeightScheduler | None = None
        self._guards = Guards(self.config)
        self._records = Records(self.config, self.directory, self.tasks)
        self.global_step = 0
        """Steps done; a rollback takes it back."""
        self._ended = False

    def _check_names(self, **settings: Mapping[str, Any]) -> None:
        for setting, names in settings.items():
            for name in names:
                if name not in self.config.tasks:
                    near = near_or_all(name, self.config.tasks, "tasks")
                    raise ConfigError(f"{setting}[{name!r}]: tasks.yaml has no such task; {near}")

    def _check_same(self, where: str, names: Mapping[str, Any]) -> None:
        if names.keys() != self.config.tasks.keys():
            raise ConfigError(
                f"{where} has {', '.join(sorted(names))}, and tasks.yaml has "
                f"{', '.join(sorted(self.config.tasks))}; give every task a weight"
            )

    @property
    def task_weights(self) -> dict[str, float]:
        """Shares of the prompts."""
        weights: dict[str, float] = self._loader.weights
        return weights

    @checked
    def train(self, num_steps: NonNegative | None = None) -> list[dict[str, float]]:
        """Take so many steps, or up to `steps` of tasks.yaml.

        Returns:
            The metrics of every step. There are fewer where an alert has ended training, and more
            where a guard has taken it back.

        Raises:
            TrainingError, RewardError, DataError, CheckpointError: training cannot go on.
            ConfigError: the directory has steps of another training; or a guard or scheduler names
                a metric that there is not.
        """
        self._checkpoints.claim(self.global_step)
        last = self.config.steps if num_steps is None else self.global_step + num_steps
        metrics: list[dict[str, float]] = []
        self._ended = False
        if self._guards and not self._checkpoints.steps():
            self.save_checkpoint()
        while self.global_step < last and not self._ended:
            metrics.append(self.step(next(iter(self._loader))))
        return metrics

    @checked
    def step(self, problems: Sequence[Problem]) -> dict[str, float]:
        """Take one step on given prompts, whose extra["task"] says which task each is of.

        Returns:
            `task/NAME/...` of every task that has some, `task/NAME/weight`; at a rollback
            `guard/rollback_from` and `guard/rollback_to`, and from then on `guard/num_rollbacks`.

        Raises:
            DataError: a prompt of no task, or no prompts.
            TrainingError, RewardError, CheckpointError, ConfigError: see `train`.
        """
        self._checkpoints.claim(self.global_step)
        metrics: dict[str, float] = {}
        learned: dict[str, int] = {}
        fallen = None
        step = self.global_step + 1
        for name, part in self._by_task(problems).items():
            try:
                metrics |= self.tasks[name].step(part, step)
            except (NotFiniteError, ScoreNotFiniteError) as error:
                fallen = self._guards.not_finite(step, name, error)
                if fallen is None:
                    raise
                break
            learned[name] = len(part)
        self.global_step = step
        metrics |= {f"task/{name}/weight": weight for name, weight in self.task_weights.items()}
        fallen = fallen or self._guards.look(step, metrics)
        if fallen is not None:
            metrics |= self._roll_back(*fallen)
        else:
            self._evaluate(metrics)
            if self.config.checkpoint_every and step % self.config.checkpoint_every == 0:
                self.save_checkpoint()
        if self._guards.num_rollbacks:
            metrics["guard/num_rollbacks"] = float(self._guards.num_rollbacks)
        self._records.write(step, metrics, learned)
        return metrics

    def _by_task(self, problems: Sequence[Problem]) -> dict[str, list[Problem]]:
        """Group the prompts of each task that has some, in the order of tasks.yaml."""
        if not problems:
            raise DataError("a step has no prompts; give it at least one")
        groups: dict[str, list[Problem]] = {name: [] for name in self.tasks}
        for problem in problems:
            name = problem.extra.get("task")
            if name not in groups:
                near = near_or_all(str(name), self.tasks, "tasks")
                raise DataError(f"{problem.where}: task = {name!r}: not in tasks.yaml; {near}")
            groups[name].append(problem)
        return {name: part for name, part in groups.items() if part}

    def _evaluate(self, metrics: Mapping[str, float]) -> None:
        if self._scheduler is not None:
            self._scheduler.observe(metrics)
            if self.global_step % self.config.evaluate_every == 0:
                self._loader.set_weights(self._scheduler.update())

    @checked
    def set_task_scheduler(self, scheduler: DynamicTaskWeightScheduler) -> None:
        """Let a scheduler set the weights of tasks from now on, every `evaluate_every` steps; its
        initial weights take the place of others.

        Raises:
            ConfigError: it is of other tasks.
        """
        self._check_same("set_task_scheduler: initial_weights", scheduler.weights)
        self._loader.set_weights(scheduler.weights)
        self._scheduler = scheduler

    @checked
    def add_guard(self, guard: SafetyGuard) -> None:
        """Have metrics watched; the first guard that sees a fall acts.

        Raises:
            ConfigError: it was added before; or checkpoints are not saved, or are gone before the
                guard needs them.
        """
        self._guards.add(guard, self.task_weights)

    def _roll_back(self, guard: SafetyGuard, fall: MetricDrop) -> dict[str, float]:
        """Go back, call the alert, and go on with another seed and smaller learning rates.

        Raises:
            TrainingError: it fell too often, or there is no checkpoint so old.
        """
        guards = self._guards
        step = guards.target(guard, fall, self._checkpoints)
        rollbacks, factor = guards.num_rollbacks + 1, guards.lr_factor * guard.lr_factor
        self.load_checkpoint(step)
        guards.num_rollbacks, guards.lr_factor = rollbacks, factor
        self._apply_rollbacks()
        # With the number of rollbacks: a job that is killed now does not fall again.
        self.save_checkpoint()
        rollback = Rollback(fall, self.global_step, guards.seed, factor)
        self._ended = guard.alert(rollback) is False
        return {
            "guard/rollback_from": float(fall.step),
            "guard/rollback_to": float(self.global_step),
        }

    def add_metrics_exporter(self, exporter: Sink | Exports) -> None:
        """See `PPOTrainer.add_metrics_exporter`; a `MetricsExporter` has tasks as a label.

        Raises:
            ConfigError: as there; or it was given metrics without that label.
        """
        self._records.sinks.add(sink_of(exporter, self.namespace, by_task=True))

    def enable_3d_hybrid_engine(self) -> str:
        """Say what serves as HybridFlow's 3D-HybridEngine in one process: nothing is resharded."""
        return (
            "3D hybrid engine: one process, in which training and generation share the weights of "
            "one module: there is one layout, and nothing to reshard"
        )

    def save_checkpoint(self) -> Path:
        """Write a step below `checkpoints`: actor, critic, heads, optimizers, and where the data,
        the scheduler and guards are.

        Raises:
            CheckpointError: it could not be written.
            ConfigError: the directory has steps of another training.
        """
        return self._checkpoints.save(self.global_step, self._state())

    @checked
    def load_checkpoint(self, path: str | Path | None = None) -> int:
        """Go on from a step's directory, or from the newest one; return the number of steps done.

        Raises:
            CheckpointError, ConfigError: there is no step, or it is of other tasks or models.
        """
        self.global_step, state = self._checkpoints.load(path)
        parts = split(state)
        self._guards.load_state(parts)
        self._apply_rollbacks()
        self._loader.load_state_dict(parts["data"])
        if self._scheduler is not None:
            self._scheduler.load_state(parts.get("scheduler", {}))
            self._loader.set_weights(self._scheduler.weights)
        for name, task in self.tasks.items():
            if task.condition is not None:
                task.condition.load_state(parts.get(f"condition_{name}", {}))
        return self.global_step

    def _state(self) -> dict[str, float]:
        parts: dict[str, Mapping[str, float]] = {"data": self._loader.state_dict()}
        parts |= self._guards.state()
        if self._scheduler is not None:
            parts["scheduler"] = self._scheduler.state()
        for name, task in self.tasks.items():
            if task.condition is not None:
                parts[f"condition_{name}"] = task.condition.state()
        return {name: float(number) for name, number in joined(parts).items()}

    def _apply_rollbacks(self) -> None:
        """Set the seed and learning rates that earlier rollbacks have led to."""
        for task in self.tasks.values():
            task.seed = self._guards.seed
            task.set_lr_factor(self._guards.lr_factor)


class Records:
    """metrics.jsonl, exporters, and a line of the log for every task.

    Args:
        config: settings of the tasks, which are written beside metrics.jsonl as tasks.yaml.
        directory: directory of metrics.jsonl; made before the first step is written.
        tasks: all tasks by name.
    """

    def __init__(self, config: TasksConfig, directory: Path, tasks: Mapping[str, Task]) -> None:
        self._config, self._directory, self._tasks = config, directory, tasks
        self.sinks = Sinks([])
        self._log: MetricsLog | None = None

    def write(
        self, step: int, metrics: Mapping[str, float], num_prompts: Mapping[str, int]
    ) -> None:
        """Write a step's metrics; `num_prompts` has each task that took part."""
        if self._log is None:
            self._directory.mkdir(parents=True, exist_ok=True)
            self._log = MetricsLog(self._directory, step - 1)
            text = write_yaml(self._config.model_dump(mode="json"))
            replace_text(self._directory / "tasks.yaml", text)
        self._log.write(step, metrics)
        for name in num_prompts:
            self.sinks.rewards(self._tasks[name].scores, name)
        self.sinks.write(step, metrics)
        for name, number in num_prompts.items():
            shown = [metrics[f"task/{name}/{key}"] for key in ("reward", "tokens_per_second")]
            text = "step %s %s: %s prompts, reward %.4g, %.0f tokens/s"
            _logger.info(text, step, name, number, *shown)
