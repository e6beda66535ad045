"""Evaluation of a policy on held-out pairs of answers."""

from __future__ import annotations

from verl_hpc.step.operators.examples import examples
from verl_hpc.step.operators.infer import ref_log_probs
from verl_hpc.step.operators.pairs import Rewards, compare_answers
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe


def pair_evaluation(run: RunContext, rewards: Rewards, *, reference_free: bool = False) -> Recipe:
    """Build the flow of an evaluation.

    Args:
        run: a run with data.evaluation.
        rewards: implicit rewards by which the policy compares two answers.
        reference_free: the rewards need no log-probs under the reference.
    """
    recipe = Recipe("evaluation", run)
    recipe.operator(
        examples, settings=run.settings.evaluation_pairs, place="actor", name="pairs", prefix="val/"
    )
    if not reference_free:
        recipe.operator(ref_log_probs, roles=["reference"], settings=1.0)
    recipe.operator(compare_answers, roles=["actor"], settings=rewards)
    return recipe
