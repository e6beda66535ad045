"""Settings of distillation from a teacher."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.section import NonNegativeFinite, Positive, Section


class Objective(Section):
    """Settings of every kind of distillation."""

    task_reward_weight: NonNegativeFinite = 0.0
    """Weight of the advantages of the reward, which are made as algorithm.advantage says; 0 scores
    nothing."""


class ReverseKl(Objective):
    """The advantage of each token is log p_teacher - log p_policy, whose mean is minus the reverse
    KL divergence; it goes through algorithm.loss."""

    name: Literal["reverse_kl"] = "reverse_kl"


class ForwardKl(Objective):
    """The KL divergence from the teacher to the policy, at the tokens of the policy's responses."""

    name: Literal["forward_kl"] = "forward_kl"
    top_k: Positive = 64
    """Number of the teacher's likeliest tokens whose probabilities are compared one by one; all
    others are compared as one."""


DistillationConfig = Annotated[ReverseKl | ForwardKl, Field(discriminator="name")]


def unmet_need(advantage: Advantage) -> str | None:
    """Describe what an estimator needs and a distillation lacks; None if it lacks nothing."""
    needs = sorted(advantage.needs & {"values", "greedy", "process_rewards"})
    if not needs:
        return None
    what = needs[0].replace("_", " ")
    return (
        f"algorithm.advantage.name = {advantage.name}: needs {what}, which recipe: distillation "
        "has not; choose one that needs scores alone, such as grpo"
    )
