"""Checks of recipe: distillation against the rest of a run."""

from __future__ import annotations

from verl_hpc.config.algorithm import AlgorithmConfig
from verl_hpc.config.distillation import ForwardKl, ReverseKl, unmet_need
from verl_hpc.config.role import ACTOR, TEACHER
from verl_hpc.config.roles import role_settings
from verl_hpc.config.sections import RunSections

_OF_THE_POLICY = ("loss", "old_log_probs", "correction")
"""Settings of `algorithm` that only a loss on advantages reads."""


def check_distillation(config: RunSections) -> None:
    """Raises: ValueError: no teacher to follow, or settings without effect."""
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


def _check_teacher(config: RunSections) -> None:
    if TEACHER not in config.roles:
        raise ValueError(
            "roles.teacher is not given, and recipe: distillation follows it; give `roles: "
            "{teacher: {path: ...}}`, a model with the same tokenizer"
        )
    path, own = (role_settings(config)[name].model.path for name in (TEACHER, ACTOR))
    if path == own:
        raise ValueError(
            f"roles.teacher.path = {path}: this is what the actor starts from, which would learn "
            "nothing; give the model to follow"
        )


def _check_task_reward(config: RunSections) -> None:
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
