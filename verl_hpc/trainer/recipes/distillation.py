"""On-policy distillation: a teacher grades the policy's own responses.

A teacher's log-prob of each token is a denser signal than a score of the response. The reverse KL
follows Thinking Machines ("On-Policy Distillation", 2025), the forward KL follows GKD (arXiv
2306.13649).
"""

from __future__ import annotations

from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.config.algorithm import ForwardKl, unmet_need
from verl_hpc.errors import ConfigError
from verl_hpc.generation.choose import select_tokens
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.distillation import StudentSettings, follow, grade, update_student
from verl_hpc.step.operators.infer import old_log_probs
from verl_hpc.step.operators.update import update_actor
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.rl import (
    add_choice,
    add_responses,
    add_scores,
    add_shaping,
    check_needs,
)


def distillation(run: RunContext) -> Recipe:
    """Build the flow of one step.

    Raises:
        ConfigError: the run lacks what the user's advantage needs.
    """
    settings, recipe = run.settings, Recipe("distillation", run)
    chosen = run.config.distillation
    add_responses(recipe, run)
    if chosen.task_reward_weight:
        add_scores(recipe, run)
    recipe.operator(old_log_probs, roles=["actor"], settings=settings.old_log_probs)
    add_choice(recipe, run)
    recipe.operator(grade, roles=["teacher"], settings=run.config)
    if chosen.task_reward_weight:
        _check_advantage(run, settings.advantage)
        shaped = add_shaping(recipe, run)
        earned = ["earned"]
        recipe.operator(
            advantages, settings=settings.advantage, place="actor", inputs=shaped, outputs=earned
        )
    recipe.operator(follow, settings=chosen, place="actor")
    if settings.select is not None:
        recipe.operator(select_tokens, settings=settings.select, place="actor")
    name, roles = "update_actor", ["actor"]
    if isinstance(chosen, ForwardKl):
        student = StudentSettings(settings.policy, chosen)
        return recipe.operator(update_student, roles=roles, settings=student, name=name)
    return recipe.operator(update_actor, roles=roles, settings=settings.policy, name=name)


def _check_advantage(run: RunContext, advantage: Advantage) -> None:
    """Check a user's advantage, which the configuration's own checks cannot."""
    problem = unmet_need(advantage)
    if problem:
        raise ConfigError(problem)
    check_needs(run, advantage)
