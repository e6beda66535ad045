"""One task at work: a run of its own on the actor that all tasks share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import torch

from verl_hpc.api.assemble import assemble
from verl_hpc.api.loading import device_here
from verl_hpc.api.prompts import StepPrompts
from verl_hpc.api.rewards import Reward
from verl_hpc.api.settings import PPOConfig, run_config
from verl_hpc.api.tasks.condition import Condition, prompt_of
from verl_hpc.api.tasks.conditioned import conditioned
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
from verl_hpc.metrics.timers import Stages, Timers
from verl_hpc.rollout.constraint import Constraint
from verl_hpc.step.batch import StepRows
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import rl


class Task:
    """A task of tasks.yaml with its scorer, constraint, head and optimizers.

    Args:
        name: of it.
        config: its settings.
        models: what all tasks share.
        seed: of the samples.
        reward: of the trainer's `rewards`, or None.
        constraint: of the trainer's `constraints`, or None.

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
        """Of the responses of its newest step."""
        self._models, self._where = models, f"tasks.{name}"
        self._device = self._chosen_device()
        self.condition: Condition | None = None
        if isinstance(config, ConditionedTask):
            self.condition = Condition(config.condition, models.tokenizer)
        self.head = self._value_head()
        scorer = task_scorer(name, config, reward, self._device)
        self._prompts, self._plain = StepPrompts(), StepPrompts()
        critic_lr = config.critic_lr if isinstance(config, PolicyTask) else config.lr
        constraint = self._constraint(constraint)
        engines = models.engines(config.lr, critic_lr, self.head)
        try:
            first = self._config(1, seed)
        except ConfigError as error:
            raise ConfigError(f"{self._where}: {error}") from None
        self.run = assemble(
            first,
            models.actor,
            self.head,
            models.tokenizer,
            self._prompts,
            scorer,
            engines,
            models.reference if config.kl_coef else None,
            constraint,
        )
        self._flow = cache(self._make_flow)

    def _chosen_device(self) -> torch.device:
        if self.config.device is None:
            return self._models.device
        device = device_here(f"{self._where}.device = {self.config.device}", self.config.device)
        if self.config.reward_model is None and not self._has_constraint_model:
            raise ConfigError(
                f"{self._where}.device = {self.config.device}: it is that of a reward model or a "
                "constraint model, and this task has neither; leave it out"
            )
        return device

    @property
    def _has_constraint_model(self) -> bool:
        constraint = getattr(self.config, "constraint", None)
        return constraint is not None and constraint.model is not None

    def _value_head(self) -> torch.nn.Module | None:
        if not isinstance(self.config, PolicyTask):
            return None
        default = "critic" if self._models.critic is not None else "none"
        if self.config.value_head is None and self.config.adv_estimator not in (None, "gae"):
            default = "none"
        reads = self.config.value_head or default
        return self._models.head(reads, f"{self._where}.value_head")

    def _constraint(self, given: Any) -> Constraint | None:
        where = f"{self._where}.constraint"
        if not isinstance(self.config, ConstrainedTask):
            if given is not None:
                raise ConfigError(
                    f"constraints[{self.name!r}]: the task's type is {self.config.type}; only "
                    "constrained_decoding has a constraint"
                )
            return None
        if (given is None) == (self.config.constraint is None):
            what = "is needed and not given" if given is None else "is given twice"
            raise ConfigError(
                f"{where}: {what}; write it in tasks.yaml, or give it in the trainer's constraints"
            )
        chosen = given if given is not None else self.config.constraint
        models = self._models
        return constraint_of(chosen, models.tokenizer, self._device, models.ends, where)

    def _config(self, num_prompts: int, seed: int) -> RunConfig:
        """The run that a step of so many prompts is one of."""
        flat = divided(self.config.of_trainer(seed), num_prompts)
        found = run_config(
            flat,
            name=self.name,
            dtype=self._models.dtype,
            has_critic=self.head is not None,
            num_prompts=num_prompts,
        )
        if self.condition is None or not self.config.kl_coef:
            return found
        kl = found.algorithm.kl.model_copy(update={"placement": "loss"})
        algorithm = found.algorithm.model_copy(update={"kl": kl})
        return found.model_copy(update={"algorithm": algorithm})

    def set_lr_factor(self, factor: float) -> None:
        """Multiply the learning rates of tasks.yaml."""
        for role in self.run.trained:
            path = role.trained
            assert isinstance(path, OptimizerPath) and role.settings.optimizer is not None
            path.lr = role.settings.optimizer.lr * factor

    def step(self, problems: Sequence[Problem], step: int) -> dict[str, float]:
        """Answer, score and learn; metrics `task/NAME/...`.

        Args:
            problems: at least one.
            step: of the trainer, from 1.

        Raises:
            DataError, RewardError, TrainingError, ModelError: as the operators.
        """
        timers = Timers()
        rows = self._prompts.add([self._asked(problem) for problem in problems])
        self._plain.add(problems)
        recipe, pipeline = self._flow(len(rows), self.seed)
        recipe.metrics.clear()
        with Stages() as stages:
            values = pipeline.run(
                rows=StepRows(step, rows),
                enter=lambda operator, _: stages.begin(timers(operator)),
            )
        self.scores = list(values["scores"].values)
        return self._named(dict(recipe.metrics), timers.drain())

    def _asked(self, problem: Problem) -> Problem:
        """With its prompt in tokens, as the rollout reads it."""
        text = self.condition.asked if self.condition is not None else ""
        return replace(problem, prompt=prompt_of(problem, self._models.tokenizer, text))

    def _make_flow(self, num_prompts: int, seed: int) -> tuple[Recipe, Pipeline]:
        """Of steps of so many prompts; they differ in their mini-batches, and by the seed."""
        run = replace(self.run, config=self._config(num_prompts, seed))
        recipe = (
            rl(run) if self.condition is None else conditioned(run, self.condition, self._plain)
        )
        return recipe, recipe.compile()

    def _named(self, found: Mapping[str, float], timings: Mapping[str, float]) -> dict[str, float]:
        num_tokens, seconds = found[names.TOKENS], timings[names.STEP_SECONDS]
        more = {
            **timings,
            "reward": found[names.SCORE],
            "seconds": seconds,
            "tokens_per_second": num_tokens / seconds,
        }
        return {f"task/{self.name}/{name}": value for name, value in {**found, **more}.items()}


def divided(config: PPOConfig, num_prompts: int) -> PPOConfig:
    """With a batch_size that divides a step's responses; how many prompts of a task a step has is
    drawn. It is the number of optimizer steps that comes nearest to what was asked for, not their
    size: 11 responses at a batch_size of 4 are one step, and not 11 steps of one response each."""
    if config.batch_size is None:
        return config
    count = num_prompts * config.num_samples
    wanted = count / config.batch_size
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    steps = min(divisors, key=lambda number: (abs(number - wanted), -number))
    return config.model_copy(update={"batch_size": count // steps})
