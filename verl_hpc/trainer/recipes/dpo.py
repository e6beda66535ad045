"""Direct preference optimisation (DPO) on pairs of answers."""

from __future__ import annotations

from verl_hpc.config.role import REFERENCE
from verl_hpc.errors import ConfigError
from verl_hpc.step.operators.examples import examples
from verl_hpc.step.operators.infer import ref_log_probs
from verl_hpc.step.operators.pairs import Rewards, compare_answers, update_on_pairs
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe


def dpo(run: RunContext) -> Recipe:
    """Build the flows of one step (arXiv 2305.18290, section 4) and of an evaluation.

    Raises:
        ConfigError: the loss needs a reference and the run has none, or the other way round.
    """
    settings, recipe = run.settings, Recipe("dpo", run)
    loss = settings.preference
    if loss.reference_free == (REFERENCE in run.roles):
        instead = "compares with a reference; give `roles: {reference: {}}`"
        if loss.reference_free:
            instead = "is reference_free; leave roles.reference out"
        raise ConfigError(f"algorithm.preference.name = {loss.name}: {instead}")
    recipe.operator(examples, settings=settings.pairs, place="actor", name="pairs")
    if not loss.reference_free:
        recipe.operator(ref_log_probs, roles=["reference"], settings=1.0)
    recipe.operator(
        update_on_pairs, roles=["actor"], settings=settings.pair_loss, name="update_actor"
    )
    if run.config.evaluation.wanted:
        recipe.evaluation = pair_evaluation(run, loss.rewards, reference_free=loss.reference_free)
    return recipe


def pair_evaluation(run: RunContext, rewards: Rewards, *, reference_free: bool = False) -> Recipe:
    """Build the flow of an evaluation of a policy on held-out pairs of answers.

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
