"""Train a reward model on pairs of answers."""

from __future__ import annotations

from verl_hpc.step.operators.examples import examples
from verl_hpc.step.operators.preference import compare_pairs, update_reward
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe


def reward_model(run: RunContext) -> Recipe:
    """Build the flows of one step (arXiv 2203.02155, section 3.5) and of an evaluation."""
    settings = run.settings
    recipe = Recipe("reward_model", run)
    recipe.operator(examples, settings=settings.pairs, place="reward", name="pairs")
    recipe.operator(update_reward, roles=["reward"], settings=settings.steps(1.0))
    if run.config.evaluation.wanted:
        recipe.evaluation = Recipe("evaluation", run)
        recipe.evaluation.operator(
            examples,
            settings=settings.evaluation_pairs,
            place="reward",
            name="pairs",
            prefix="val/",
        )
        recipe.evaluation.operator(compare_pairs, roles=["reward"])
    return recipe
