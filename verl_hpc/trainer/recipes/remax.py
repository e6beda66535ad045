"""ReMax: no critic; the greedy answer to a prompt is what its responses are measured against."""

from __future__ import annotations

from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.operators.advantages import greedy_advantages
from verl_hpc.trainer.operators.assign import assign
from verl_hpc.trainer.operators.generate import generate
from verl_hpc.trainer.operators.update import update_actor
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.grpo import add_scored_responses, add_scores


def remax(run: RunContext) -> Recipe:
    """The flow of one ReMax step (arXiv 2310.10505)."""
    settings, recipe = run.settings, Recipe("remax", run)
    greedy = settings.generate.greedily(settings.problems, "greedy")
    recipe.operator(
        generate,
        roles=["rollout"],
        settings=greedy,
        name="greedy_rollout",
        outputs=["greedy_responses", "greedy_sequences"],
        index="greedy_samples",
    )
    recipe.operator(
        assign,
        settings=settings.assign,
        place="rollout",
        name="greedy_assign",
        inputs={"responses": "greedy_responses"},
        outputs=["greedy_samples"],
        prefix="greedy/",
    )
    add_scored_responses(recipe, run)
    add_scores(recipe, run, "greedy_")
    recipe.operator(greedy_advantages, place="actor", name="advantages")
    recipe.operator(update_actor, roles=["actor"], settings=settings.policy)
    return recipe
