"""What a policy learns from a teacher."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.config.algorithm import AlgorithmConfig
from verl_hpc.config.roles import ACTOR, TEACHER
from verl_hpc.section import NonNegativeFinite, Positive, Section

if TYPE_CHECKING:
    from verl_hpc.config.run import RunConfig


class Objective(Section):
    """What every kind of distillation has."""

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
    """Of the teacher's likeliest tokens whose probabilities are compared one by one; all others
    are compared as one."""


_OF_THE_POLICY = ("loss", "old_log_probs", "correction")
"""Settings of a loss on advantages."""
DistillationConfig = Annotated[ReverseKl | ForwardKl, Field(discriminator="name")]


def check_distillation(config: RunConfig) -> None:
    """Raises: ValueError: no teacher to follow, or settings that nothing would come of."""
    if config.recipe != "distillation":
        if config.distillation != ReverseKl() and not config.has_own_recipe:
            raise ValueError(
                f"distillation with recipe: {config.recipe}, which follows no teacher; leave it "
                "out, or choose recipe: distillation"
            )
        return
    _check_teacher(config)
    placement = config.algorithm.kl.placement
    if placement != "none":
        raise ValueError(
            f"algorithm.kl.placement = {placement}: the teacher is the reference that recipe: "
            "distillation follows; choose none"
        )
    _check_task_reward(config)


def _check_teacher(config: RunConfig) -> None:
    if TEACHER not in config.roles:
        raise ValueError(
            "roles.teacher is not given, and recipe: distillation follows it; give `roles: "
            "{teacher: {path: ...}}`, a model with the same tokenizer"
        )
    path, own = (config.role_settings[name].model.path for name in (TEACHER, ACTOR))
    if path == own:
        raise ValueError(
            f"roles.teacher.path = {path}: this is what the actor starts from, which would learn "
            "nothing; give the model to follow"
        )


def unmet_need(advantage: Advantage) -> str | None:
    """What an estimator needs that a distillation does not have, in words."""
    needs = sorted(advantage.needs & {"values", "greedy", "process_rewards"})
    if not needs:
        return None
    what = needs[0].replace("_", " ")
    return (
        f"algorithm.advantage.name = {advantage.name}: needs {what}, which recipe: distillation "
        "has not; choose one that needs scores alone, such as grpo"
    )


def _check_task_reward(config: RunConfig) -> None:
    weight, algorithm = config.distillation.task_reward_weight, config.algorithm
    if weight:
        problem = unmet_need(algorithm.advantage)
        if problem:
            raise ValueError(problem)
        return
    if algorithm.overlong is not None and algorithm.overlong.buffer:
        raise ValueError(
            f"algorithm.overlong.buffer = {algorithm.overlong.buffer}: is a penalty on the score, "
            "and nothing is scored with distillation.task_reward_weight = 0; leave it out, or "
            "give the reward a weight"
        )
    default = AlgorithmConfig()
    by_teacher_alone = isinstance(config.distillation, ForwardKl)
    for name in ("advantage", "drop_equal_groups", *_OF_THE_POLICY * by_teacher_alone):
        if getattr(algorithm, name) != getattr(default, name):
            raise ValueError(
                f"algorithm.{name}: has no effect with distillation.name = "
                f"{config.distillation.name} and distillation.task_reward_weight = 0; leave it "
                "out, or give the reward a weight"
            )
