"""Settings of runs with several tasks, and of guards that watch metrics."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from verl_hpc.config.algorithm import AlgorithmConfig
from verl_hpc.config.data import TrainConfig
from verl_hpc.config.reward import RewardConfig
from verl_hpc.config.rollout import StructuredConfig, Temperature
from verl_hpc.section import (
    Finite,
    Fraction,
    Positive,
    PositiveFinite,
    ProperFraction,
    Section,
    chosen_by,
)

TaskName = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=40)]
Step = Annotated[int, Field(ge=1)]


class TaskConfig(Section):
    """One of several tasks that train the actor in turn, a step each. What is null is taken from
    the run's own sections, as far as the task's recipe reads them."""

    weight: Fraction | None = None
    """Share of the steps. The weights of all tasks sum to 1; null in all of them gives equal
    shares."""
    schedule: dict[Step, Fraction] = {}
    """In place of weight: the share at some steps, such as {1: 0.9, 500: 0.2}. It changes linearly
    between them, and stays as it is before the first and after the last."""
    recipe: Literal["rl", "sft", "dpo", "kto", "distillation"] | None = None
    """What a step of this task does; recipe if null."""
    train: TrainConfig | None = None
    """Problems to train on; data.train if null."""
    reward: RewardConfig | None = None
    """Who scores the responses; null takes reward, or roles.reward where there is one."""
    algorithm: AlgorithmConfig | None = None
    """algorithm if null."""
    batch_size: Positive | None = None
    """batch.size if null."""
    num_samples: Positive | None = None
    """rollout.num_samples if null."""
    temperature: Temperature | None = None
    """rollout.temperature if null."""
    max_response_tokens: Positive | None = None
    """rollout.max_response_tokens if null."""
    structured: StructuredConfig | None = None
    """rollout.structured if null."""

    @model_validator(mode="after")
    def _has_one_share(self) -> TaskConfig:
        if self.schedule and self.weight is not None:
            raise ValueError("weight and schedule exclude each other; leave weight out")
        return self

    def share(self, step: int, default: float) -> float:
        """Return the share of the steps that `weight` or `schedule` gives the task at a step.

        Args:
            default: the share of a task without either.
        """
        points = sorted(self.schedule.items())
        if not points:
            return default if self.weight is None else self.weight
        start, low = max((p for p in points if p[0] <= step), default=points[0])
        end, high = min((p for p in points if p[0] >= step), default=points[-1])
        if start == end:
            return low
        return low + (high - low) * (step - start) / (end - start)


class MixConfig(Section):
    """How often each of several tasks is trained."""

    by: Literal["weight", "success", "progress"] = "weight"
    """weight takes each task's weight or schedule. success multiplies it by 1 - s for a task's mean
    score s between 0 and 1, so that tasks which often fail come more often (arXiv 2501.12599,
    section 2.3.3). progress multiplies it by how fast the mean score changes, up or down (arXiv
    1707.00183)."""
    min_weight: Fraction = 0.05
    """Least share of each task, whatever weights, schedules and scores say."""
    decay: Annotated[ProperFraction, chosen_by("by")] = 0.8
    """How much of a task's mean score stays at each of its steps. progress compares it with one
    that changes half as fast."""

    @model_validator(mode="after")
    def _has_effect(self) -> MixConfig:
        if self.by == "weight":
            self._check_unchanged(["decay"], "by: weight, which reads no scores")
        return self


class GuardConfig(Section):
    """A metric that is watched in every step, with one of three limits."""

    metric: Annotated[str, Field(min_length=1, max_length=200)]
    """Name of the metric, as in metrics.jsonl."""
    below: Finite | None = None
    """The guard acts if the mean is less."""
    above: Finite | None = None
    """The guard acts if the mean is more."""
    drop: PositiveFinite | None = None
    """The guard acts if the mean is more than this below the best that it was."""
    over: Annotated[Positive, Field(le=10_000)] = 1
    """Number of newest values whose mean is compared."""
    action: Literal["alert", "stop", "rollback"] = "alert"
    """alert writes a warning and a line of guards.jsonl. stop also saves and ends the run. rollback
    also goes back to the newest checkpoint before the fall, and skips the training data that were
    used since, as PaLM did (arXiv 2204.02311, section 5.1)."""
    max_rollbacks: Annotated[Positive, chosen_by("action")] = 3
    """A further fall ends the run."""

    @model_validator(mode="after")
    def _has_one_limit(self) -> GuardConfig:
        if sum(limit is not None for limit in (self.below, self.above, self.drop)) != 1:
            raise ValueError("give one of below, above, drop")
        if self.action != "rollback":
            self._check_unchanged(["max_rollbacks"], f"action: {self.action}")
        return self
