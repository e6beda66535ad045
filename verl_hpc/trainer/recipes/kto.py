"""KTO: learn from answers labelled good or bad, without pairs."""

from __future__ import annotations

from verl_hpc.step.operators.infer import ref_log_probs
from verl_hpc.step.operators.labelled import labelled_examples, mismatched_answers, update_on_labels
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.dpo import pair_evaluation


def kto(run: RunContext) -> Recipe:
    """Build the flows of one step (arXiv 2402.01306, section 4) and of an evaluation on pairs."""
    settings, recipe = run.settings, Recipe("kto", run)
    recipe.operator(labelled_examples, settings=settings.examples, place="actor", name="examples")
    recipe.operator(
        mismatched_answers, settings=settings.examples, place="actor", index="mismatched_samples"
    )
    recipe.operator(ref_log_probs, roles=["reference"], settings=1.0)
    recipe.operator(
        ref_log_probs,
        roles=["reference"],
        settings=1.0,
        name="mismatched_ref_log_probs",
        inputs={"samples": "mismatched_samples", "sequences": "mismatched"},
        outputs=["mismatched_reference"],
        index="mismatched_samples",
    )
    recipe.operator(
        update_on_labels, roles=["actor"], settings=settings.steps(1.0), name="update_actor"
    )
    if run.config.evaluation.wanted:
        recipe.evaluation = pair_evaluation(run, run.config.algorithm.kto.rewards)
    return recipe
