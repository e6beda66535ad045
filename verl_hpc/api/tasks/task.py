"""One task at work: a run of its own on the actor that all tasks share."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from verl_hpc.api.assemble import assemble
from verl_hpc.api.loading import device_here
from verl_hpc.api.prompts import StepPrompts
from verl_hpc.api.rewards import Reward
from verl_hpc.api.settings import PPOConfig, run_config
from verl_hpc.api.tasks.conditioned import Condition, conditioned, prompt_of
from verl_hpc.api.tasks.constraints import constraint_of
from verl_hpc.api.tasks.scorers import task_scorer
from verl_hpc.api.tasks.settings import ConditionedTask, ConstrainedTask, PolicyTask, TaskConfig
from verl_hpc.api.tasks.shared import SharedModels
from verl_hpc.config.run import RunConfig
from verl_hpc.data.problem import Problem
from verl_hpc.engines.shared_module import OptimizerPath
from verl_hpc.errors import ConfigError
from verl_hpc.flow import Pipeline
from verl_hpc.metrics import names
from verl_hpc.metrics.meters import Meters
from verl_hpc.rollout.constraint import Constraint
from verl_hpc.step.batch import StepRows
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import rl


class Task:
    """A task of tasks.yaml with its scorer, constraint, head and optimizers.

    Args:
        name: name of the task.
        config: its settings.
        models: what all tasks share.
        seed: seed of the samples.
        reward: the trainer's reward of this task, or None.
        constraint: the trainer's constraint of this task, or None.

    Raises:
        ConfigError, RewardError, ModelError: what cannot be honoured.
    """

    def __init__(
        self,
        name: str,
        config: TaskConfig,
        models: SharedModels,
        seed: int,
        reward: Reward = None,
        constraint: Any = None,
    ) -> None:
        self.name, self.config, self.seed = name, config, seed
        self.scores: list[float] = []
        """Scores of the responses of its newest step."""
        self._models = models
        device = self._device()
        self.condition: Condition | None = None
        if isinstance(config, ConditionedTask):
            self.condition = Condition(config.condition, models.tokenizer)
        head = self._value_head()
        self._has_critic = head is not None
        scorer = task_scorer(name, config, reward, device)
        self._prompts, self._plain = StepPrompts(), StepPrompts()
        critic_lr = config.critic_lr if isinstance(config, PolicyTask) else config.lr
        limits = self._constraint(constraint, device)
        engines = models.engines(config.lr, critic_lr, head)
        try:
            first = self._config(1, seed)
        except ConfigError as error:
            raise ConfigError(f"tasks.{name}: {error}") from None
        self.run = assemble(
            first,
            models.actor,
            head,
            models.tokenizer,
            self._prompts,
            scorer,
            engines,
            models.reference if config.kl_coef else None,
            limits,
        )
        self._flow = cache(self._make_flow)

    def _device(self) -> torch.device:
        config, where = self.config, f"tasks.{self.name}.device = {self.config.device}"
        if config.device is None:
            return self._models.device
        device = device_here(where, config.device)
        constraint = getattr(config, "constraint", None)
        if config.reward_model is None and (constraint is None or constraint.model is None):
            raise ConfigError(
                f"{where}: it is that of a reward model or a constraint model, and this task has "
                "neither; leave it out"
            )
        return device

    def _value_head(self) -> torch.nn.Module | None:
        if not isinstance(self.config, PolicyTask):
            return None
        reads = self.config.value_head
        if reads is None:
            uses_values = self.config.adv_estimator in (None, "gae")
            reads = "critic" if self._models.critic is not None and uses_values else "none"
        return self._models.head(reads, f"tasks.{self.name}.value_head")

    def _constraint(self, given: Any, device: torch.device) -> Constraint | None:
        where, config = f"tasks.{self.name}.constraint", self.config
        if not isinstance(config, ConstrainedTask):
            if given is not None:
                raise ConfigError(
                    f"constraints[{self.name!r}]: the task's type is {config.type}; only "
                    "constrained_decoding has a constraint"
                )
            return None
        if (given is None) == (config.constraint is None):
            what = "is needed and not given" if given is None else "is given twice"
            raise ConfigError(
                f"{where}: {what}; write it in tasks.yaml, or give it in the trainer's constraints"
            )
        chosen, models = given if given is not None else config.constraint, self._models
        return constraint_of(chosen, models.tokenizer, device, models.ends, where)

    def _config(self, num_prompts: int, seed: int) -> RunConfig:
        """Return the configuration of a run whose steps have so many prompts."""
        flat = divided(self.config.of_trainer(seed), num_prompts)
        config = run_config(
            flat, self._models.actor, self._has_critic, name=self.name, num_prompts=num_prompts
        )
        if self.condition is None or not self.config.kl_coef:
            return config
        kl = config.algorithm.kl.model_copy(update={"placement": "loss"})
        algorithm = config.algorithm.model_copy(update={"kl": kl})
        return config.model_copy(update={"algorithm": algorithm})

    def set_lr_factor(self, factor: float) -> None:
        """Multiply the learning rates of tasks.yaml."""
        for role in self.run.trained:
            path = role.trained
            assert isinstance(path, OptimizerPath) and role.settings.optimizer is not None
            path.lr = role.settings.optimizer.lr * factor

    def step(self, problems: Sequence[Problem], step: int) -> dict[str, float]:
        """Answer, score and learn; return metrics `task/NAME/...`.

        Args:
            problems: at least one.
            step: the trainer's step, from 1.

        Raises:
            DataError, RewardError, TrainingError, ModelError: raised by the operators.
        """
        text = self.condition.asked if self.condition is not None else ""
        tokenizer, meters = self._models.tokenizer, Meters()
        rows = self._prompts.add(
            [replace(p, prompt=prompt_of(p, tokenizer, text)) for p in problems]
        )
        self._plain.add(problems)
        recipe, pipeline = self._flow(len(rows), self.seed)
        recipe.metrics.clear()
        values = pipeline.run(
            rows=StepRows(step, rows), enter=lambda operator, _: meters.enter(operator)
        )
        self.scores = list(values["scores"].values)
        metrics = {**recipe.metrics, **meters.drain()}
        seconds = metrics[names.STEP_SECONDS]
        metrics |= {
            "reward": metrics[names.SCORE],
            "seconds": seconds,
            "tokens_per_second": metrics[names.TOKENS] / seconds,
        }
        return {f"task/{self.name}/{name}": value for name, value in metrics.items()}

    def _make_flow(self, num_prompts: int, seed: int) -> tuple[Recipe, Pipeline]:
        """Make the flow of steps of so many prompts, whose number of mini-batches depends on it."""
        run = replace(self.run, config=self._config(num_prompts, seed))
        recipe = (
            rl(run) if self.condition is None else conditioned(run, self.condition, self._plain)
        )
        return recipe, recipe.compile()


def divided(config: PPOConfig, num_prompts: int) -> PPOConfig:
    """Return settings with a batch_size that divides a step's responses, whose number is drawn. It
    is the number of optimizer steps that comes nearest to what was asked for, not their size: 11
    responses at a batch_size of 4 are one step, and not 11 steps of one response each."""
    if config.batch_size is None:
        return config
    count = num_prompts * config.num_samples
    wanted = count / config.batch_size
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    steps = min(divisors, key=lambda number: (abs(number - wanted), -number))
    return config.model_copy(update={"batch_size": count // steps})
