"""state.json: what a run remembers besides its tensors; small, and the same on all ranks."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat

from verl_hpc.data.order import Position


class OptimizerCounters(BaseModel):
    """What an optimizer remembers besides its moments."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    num_steps: int = Field(ge=0)


class AdapterState(BaseModel):
    """What a step's adapters belong to; it holds them alone, and the base is not written again."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    base: str
    """Path of the model, as the run's configuration has it. Its weights are told by the
    fingerprint."""
    rank: int = Field(ge=1)
    alpha: FiniteFloat


class RunState(BaseModel):
    """Everything small of a run after a step."""

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    step: int = Field(ge=0)
    """Steps done."""
    position: Position
    """Of the training data."""
    kl_coefficient: float | None
    """Where an adaptive controller has taken it; None if it is fixed."""
    optimizers: dict[str, OptimizerCounters]
    """By engine: actor, and critic if there is one."""
    numbers: dict[str, FiniteFloat] = {}
    """Of the recipe, by name."""
    template_time: str = ""
    """When the run began, in ISO 8601, which chat templates take for today; empty in steps of older
    versions."""
    turn_end: int | None = None
    """The token with which the chat template ends a turn, where prompts go through it: what the
    model has learned to end answers with."""
    fingerprint: dict[str, str] = {}
    """What the run is made of, by name: a value that changes means other data, another recipe."""
    ahead: str = ""
    """What says how responses of later steps were made that the step has; empty without any."""
    adapters: dict[str, AdapterState] = {}
    """By engine, of those that are adapters of a base."""
