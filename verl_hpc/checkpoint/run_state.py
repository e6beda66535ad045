"""state.json: state of a run besides tensors; small, and equal on all ranks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from verl_hpc.data.order import Position


class OptimizerCounters(BaseModel):
    """State of an optimizer besides its moments."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    num_steps: int = Field(ge=0)


class AdapterState(BaseModel):
    """Base and form of a step's adapters; the step does not contain the base's weights."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    base: str
    """Path of the base model, as in the run's configuration; the fingerprint identifies its
    weights."""
    rank: int = Field(ge=1)
    alpha: FiniteFloat


class TaskState(BaseModel):
    """State of one of several tasks."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    position: Position = Position()
    """Position in the task's training data."""
    num_steps: int = Field(0, ge=0)
    """Number of its finished steps."""
    score: FiniteFloat | None = None
    """Running mean of its scores; None before the first."""
    slow_score: FiniteFloat | None = None
    """Running mean that changes half as fast."""
    kl_coefficient: float | None = None
    """Coefficient of its adaptive controller; None if it is fixed."""


class RunState(BaseModel):
    """Small state of a run after a step."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    step: int = Field(ge=0)
    """Number of finished steps."""
    position: Position
    """Position in the training data."""
    kl_coefficient: float | None
    """Coefficient of an adaptive controller; None if it is fixed."""
    optimizers: dict[str, OptimizerCounters]
    """Optimizer counters by trained role, such as actor and critic."""
    numbers: dict[str, FiniteFloat] = {}
    """Numbers of the recipe, by name."""
    template_time: str = ""
    """Start of the run, in ISO 8601, which chat templates use as today; empty in steps of older
    versions."""
    turn_end: int | None = None
    """Token with which the chat template ends a turn, and the trained model its answers; None if
    prompts do not use the template."""
    fingerprint: dict[str, str] = {}
    """Fingerprint of the run's inputs, by name, such as data and recipe (`trainer.fingerprint`)."""
    tasks: dict[str, TaskState] = {}
    """States of tasks by name, in a run with several."""
    next_task: str = ""
    """Task of the next step; empty without tasks."""
    ahead: str = ""
    """Key of the settings of responses generated ahead (`trainer.made_ahead`); empty without
    staleness."""
    adapters: dict[str, AdapterState] = {}
    """Adapters' states by role, for roles that train adapters."""
