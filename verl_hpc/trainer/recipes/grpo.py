"""GRPO: sample a group of responses per prompt, and prefer those that beat their group."""

from __future__ import annotations

from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.operators.advantages import group_advantages
from verl_hpc.trainer.operators.assign import assign
from verl_hpc.trainer.operators.generate import generate
from verl_hpc.trainer.operators.infer import model_scores, old_log_probs, ref_log_probs
from verl_hpc.trainer.operators.kl import kl_in_reward
from verl_hpc.trainer.operators.score import score
from verl_hpc.trainer.operators.update import update_actor
from verl_hpc.trainer.recipe import Recipe


def scored_responses(name: str, run: RunContext) -> Recipe:
    """What recipes of a policy have in common: responses, scores, log-probs, the KL penalty."""
    return add_scored_responses(Recipe(name, run), run)


def add_scored_responses(recipe: Recipe, run: RunContext) -> Recipe:
    """The same, behind what else generates: models then take the device back from the engine."""
    settings = run.settings
    recipe.operator(generate, roles=["rollout"], settings=settings.generate, name="rollout")
    recipe.operator(assign, settings=settings.assign, place="rollout")
    add_scores(recipe, run)
    recipe.operator(old_log_probs, roles=["actor"], settings=settings.old_log_probs)
    if run.config.algorithm.kl.placement != "none":
        recipe.operator(ref_log_probs, roles=["reference"], settings=settings.temperature)
    if run.config.algorithm.kl.placement == "reward":
        recipe.operator(kl_in_reward, settings=settings.kl, place="actor", name="kl_penalty")
    return recipe


def add_scores(recipe: Recipe, run: RunContext, of: str = "") -> None:
    """Scores of samples and sequences, all of whose names begin with `of`: by the model of the role
    reward if there is one, else by the reward function."""
    names = {name: f"{of}{name}" for name in ("samples", "sequences")}
    prefix, name, outputs = of.replace("_", "/"), f"{of}reward", [f"{of}scores"]
    if "reward" in run.roles:
        recipe.operator(
            model_scores, roles=["reward"], name=name, inputs=names, outputs=outputs, prefix=prefix
        )
        return
    recipe.operator(
        score,
        settings=run.settings.score,
        place="scoring",
        name=name,
        inputs=names,
        outputs=outputs,
        prefix=prefix,
    )


def grpo(run: RunContext) -> Recipe:
    """The flow of one GRPO step (arXiv 2402.03300)."""
    recipe = scored_responses("grpo", run)
    advantage = run.config.advantage
    recipe.operator(group_advantages, settings=advantage, place="actor", name="advantages")
    recipe.operator(update_actor, roles=["actor"], settings=run.settings.policy)
    return recipe
