"""On-policy distillation (GKD, arXiv 2306.13649): the policy's own responses, graded by a teacher.

The reward of a token is log p_teacher - log p_policy, whose mean is minus the reverse KL; each
token is credited with its own reward alone.

    recipe: examples/distillation.py:distillation
    roles: {actor: {}, teacher: {path: a larger model of the same tokenizer}}
"""

import torch

from verl_hpc.errors import ConfigError
from verl_hpc.trainer.batch import ADVANTAGES, MASK, OLD_LOG_PROBS, Columns, Samples, add_column
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.operators.assign import assign
from verl_hpc.trainer.operators.generate import generate
from verl_hpc.trainer.operators.infer import log_probs_of, old_log_probs
from verl_hpc.trainer.operators.update import update_actor
from verl_hpc.trainer.placement import Placement
from verl_hpc.trainer.recipe import Metrics, Recipe, operator
from verl_hpc.trainer.role import Role

TEACHER_LOG_PROBS = add_column("teacher_log_probs")


@operator("graded")
def grade(
    place: Placement, teacher: Role, temperature: float, samples: Samples, sequences: Columns
) -> tuple[Columns, Metrics]:
    """Log-probs of the responses under the teacher."""
    return log_probs_of(teacher, temperature, samples, sequences, TEACHER_LOG_PROBS), {}


@operator("advantages")
def follow(
    place: Placement, sequences: Columns, old: Columns, graded: Columns
) -> tuple[Columns, Metrics]:
    """How much likelier each token is to the teacher, and the mean reverse KL."""
    rows, sums = [], torch.zeros(2, dtype=torch.float64, device=place.device)
    for mine, theirs, mask in zip(
        old[OLD_LOG_PROBS], graded[TEACHER_LOG_PROBS], sequences[MASK], strict=True
    ):
        rows.append((theirs - mine) * mask)
        sums += torch.stack([rows[-1].double().sum(), mask.double().sum()])
    total, count = place.reduce(sums).tolist()
    metrics = {"distillation/reverse_kl": -total / max(count, 1.0)}
    return Columns(sequences.positions, {ADVANTAGES: rows}), metrics


def distillation(run: RunContext) -> Recipe:
    """The flow of one step.

    Raises:
        ConfigError: a KL penalty; the teacher is the reference.
    """
    placement = run.config.algorithm.kl.placement
    if placement != "none":
        raise ConfigError(
            f"algorithm.kl.placement = {placement}: distillation follows its teacher, and no other "
            "reference; choose none"
        )
    settings, recipe = run.settings, Recipe("distillation", run)
    recipe.operator(generate, roles=["rollout"], settings=settings.generate)
    recipe.operator(assign, settings=settings.assign, place="rollout")
    recipe.operator(old_log_probs, roles=["actor"], settings=settings.old_log_probs)
    recipe.operator(grade, roles=["teacher"], settings=settings.temperature)
    recipe.operator(follow, place="actor")
    return recipe.operator(update_actor, roles=["actor"], settings=settings.policy)
