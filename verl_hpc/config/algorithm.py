"""Advantages, losses and the batches they are computed on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from verl_hpc.config.base import (
    Finite,
    Fraction,
    NonNegativeFinite,
    Positive,
    PositiveFinite,
    Section,
)

Aggregation = Literal[
    "token-mean",
    "token-sum",
    "seq-mean-token-sum",
    "seq-mean-token-mean",
    "seq-mean-token-sum-norm",
]


class GaeConfig(Section):
    """Generalised advantage estimation (arXiv 1506.02438)."""

    name: Literal["gae"] = "gae"
    gamma: Fraction = 1.0
    lam: Fraction = 1.0


class GrpoConfig(Section):
    """Group-relative advantages (arXiv 2402.03300)."""

    name: Literal["grpo"] = "grpo"
    normalise_by_std: bool = True
    """False is Dr.GRPO (arXiv 2503.20783)."""


AdvantageConfig = Annotated[GaeConfig | GrpoConfig, Field(discriminator="name")]


class KlConfig(Section):
    """Penalty for leaving the reference policy (the weights the run started from)."""

    placement: Literal["none", "reward", "loss"] = "none"
    """none computes no reference log-probs at all."""
    estimator: Literal["k1", "abs", "k2", "k3", "k1+", "k3+"] = "k3"
    """Schulman's estimators; a trailing + takes k2's gradient."""
    coefficient: NonNegativeFinite = 0.001
    controller: Literal["fixed", "adaptive"] = "fixed"
    target: PositiveFinite = 0.1
    """KL that the adaptive controller steers to."""
    horizon: Positive = 10000
    """Samples over which the adaptive controller corrects by its full step."""

    @model_validator(mode="after")
    def _controller_has_effect(self) -> KlConfig:
        if self.controller == "adaptive" and self.placement != "reward":
            raise ValueError("controller: adaptive needs placement: reward")
        return self


class AlgorithmConfig(Section):
    """Everything between a scored batch and a gradient."""

    advantage: AdvantageConfig | None = None
    """gae for ppo, grpo for grpo, if not given."""
    clip_low: Fraction = 0.2
    clip_high: NonNegativeFinite = 0.2
    """0.28 is DAPO's clip-higher."""
    dual_clip: Annotated[float, Field(gt=1.0)] | None = 3.0
    """Bound on the ratio where the advantage is negative (arXiv 1912.09729); null is off."""
    aggregation: Aggregation = "token-mean"
    loss_scale: PositiveFinite | None = None
    """What seq-mean-token-sum-norm divides a sequence's sum by; null takes
    rollout.max_response_tokens."""
    entropy_coefficient: Finite = 0.0
    old_log_probs: Literal["recompute", "rollout"] = "recompute"
    """Whose log-probs the ratio starts from: the trainer's, or the rollout engine's."""
    kl: KlConfig = KlConfig()


class BatchConfig(Section):
    """How much work a step is and how it is cut."""

    size: Positive = 128
    """Prompts a step (ppo, grpo) or examples a step (sft)."""
    mini_batches: Positive = 1
    """Optimizer steps that a batch is cut into, per update epoch."""
    update_epochs: Positive = 1
    """Passes over a batch."""
    max_tokens_per_micro_batch: Positive = 16384
    """Tokens of one forward and backward pass on a model-parallel group."""
