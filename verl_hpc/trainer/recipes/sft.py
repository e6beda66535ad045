"""Supervised fine-tuning on the data set's answers."""

from __future__ import annotations

from verl_hpc.step.operators.examples import examples
from verl_hpc.step.operators.update import update_sft
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe


def sft(run: RunContext) -> Recipe:
    """Build the flow of one step: encode examples, take an optimizer step on their answers."""
    recipe = Recipe("sft", run)
    recipe.operator(examples, settings=run.settings.examples, place="actor")
    recipe.operator(
        update_sft, roles=["actor"], settings=run.settings.steps(1.0), name="update_actor"
    )
    return recipe
