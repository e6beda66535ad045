"""PPO with a critic: advantages by GAE from learned values."""

from __future__ import annotations

from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.operators.advantages import token_advantages
from verl_hpc.trainer.operators.infer import values
from verl_hpc.trainer.operators.update import update_actor, update_critic
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.grpo import scored_responses


def ppo(run: RunContext) -> Recipe:
    """The flow of one PPO step (arXiv 1707.06347); the critic's first steps are its own."""
    settings = run.settings
    recipe = scored_responses("ppo", run)
    first = run.config.critic.warmup_steps + 1
    recipe.operator(values, roles=["critic"])
    advantage = run.config.advantage
    recipe.operator(token_advantages, settings=advantage, place="actor", name="advantages")
    recipe.operator(update_actor, roles=["actor"], settings=settings.policy, first_step=first)
    recipe.operator(update_critic, roles=["critic"], settings=settings.value)
    return recipe
