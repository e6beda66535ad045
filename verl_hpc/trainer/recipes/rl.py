"""Reinforcement learning: sample responses, score them, and learn from their advantages.

The advantage decides which further operators there are: values of a critic that is also trained,
scored greedy answers, or process rewards of a model that learns from the scores.
"""

from __future__ import annotations

from verl_hpc.algorithms.advantage import Advantage
from verl_hpc.config.role import CRITIC, PRM, PRM_REFERENCE
from verl_hpc.data.mixed import MixedSource
from verl_hpc.errors import ConfigError
from verl_hpc.generation.choose import choose_tokens, select_tokens, shape_scores
from verl_hpc.generation.generate import generate
from verl_hpc.generation.refill import generate_mixed
from verl_hpc.generation.score import score, score_sets
from verl_hpc.planner.timing.operators import log_probs_before
from verl_hpc.step.operators.advantages import advantages
from verl_hpc.step.operators.assign import assign
from verl_hpc.step.operators.infer import model_scores, old_log_probs, ref_log_probs, values
from verl_hpc.step.operators.kl import kl_in_reward
from verl_hpc.step.operators.process_reward import process_rewards, update_prm
from verl_hpc.step.operators.smooth import smooth
from verl_hpc.step.operators.update import update_actor, update_critic
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe


def rl(run: RunContext) -> Recipe:
    """Build the flow of one step.

    Raises:
        ConfigError: the run lacks what the user's advantage needs.
    """
    settings, recipe = run.settings, Recipe("rl", run)
    advantage = settings.advantage
    check_needs(run, advantage)
    if "greedy" in advantage.needs:
        add_greedy_responses(recipe, run)
    add_scored_responses(recipe, run)
    if "greedy" in advantage.needs:
        add_scores(recipe, run, "greedy_")
    if "values" in advantage.needs:
        recipe.operator(values, roles=["critic"])
    if "process_rewards" in advantage.needs:
        add_process_rewards(recipe, run)
    inputs = add_shaping(recipe, run)
    if "greedy" in advantage.needs:
        inputs |= add_penalties(recipe, run, "greedy_")
    recipe.operator(advantages, settings=advantage, place="actor", inputs=inputs)
    if settings.select is not None:
        recipe.operator(select_tokens, settings=settings.select, place="actor")
    first = run.config.critic.warmup_steps + 1 if "values" in advantage.needs else 1
    recipe.operator(update_actor, roles=["actor"], settings=settings.policy, first_step=first)
    if "values" in advantage.needs:
        recipe.operator(update_critic, roles=["critic"], settings=settings.value)
    return recipe


def check_needs(run: RunContext, advantage: Advantage) -> None:
    """Check a user's advantage, which the configuration's own checks cannot.

    Raises:
        ConfigError: the run lacks what it needs.
    """
    setting = "algorithm.advantage.name"
    for need, role in (("values", CRITIC), ("process_rewards", PRM)):
        what = need.replace("_", " ")
        if need in advantage.needs and role not in run.roles:
            raise ConfigError(
                f"{setting} = {advantage.name}: needs {what}; give `roles: {{{role}: {{}}}}`"
            )
        if need not in advantage.needs and role in run.roles:
            raise ConfigError(
                f"{setting} = {advantage.name}: needs no {what}; leave roles.{role} out"
            )
    if "greedy" in advantage.needs and run.settings.refill is not None:
        raise ConfigError(
            f"{setting} = {advantage.name}: needs greedy answers, and batch.refill_rounds asks "
            "other prompts; leave one of the two out"
        )
    if "greedy" in advantage.needs and run.config.reward.smoothing is not None:
        raise ConfigError(
            f"reward.smoothing with {setting} = {advantage.name}, which measures scores against "
            "those of greedy answers; leave smoothing out"
        )
    if advantage.compares and run.config.rollout.num_samples < 2:
        raise ConfigError(
            f"{setting} = {advantage.name}: compares the responses to one prompt; set "
            "rollout.num_samples to at least 2"
        )


def scored_responses(name: str, run: RunContext) -> Recipe:
    """Start a policy's recipe with the common operators: responses, scores, log-probs, KL
    penalty."""
    return add_scored_responses(Recipe(name, run), run)


def add_scored_responses(recipe: Recipe, run: RunContext) -> Recipe:
    """Add these operators after all others that generate, since models then take the device back
    from the engine."""
    add_responses(recipe, run)
    add_scores(recipe, run)
    add_set_scores(recipe, run)
    add_log_probs(recipe, run)
    add_choice(recipe, run)
    return recipe


def add_responses(recipe: Recipe, run: RunContext) -> None:
    """Add responses and their assignment to ranks; with batch.refill_rounds also their scores."""
    settings, refill, asked = run.settings, run.settings.refill, {}
    if refill is None:
        recipe.operator(generate, roles=["rollout"], settings=settings.generate, name="rollout")
    else:
        recipe.operator(generate_mixed, roles=["rollout"], settings=refill, name="rollout")
        asked = {"rows": "asked"}
    recipe.operator(assign, settings=settings.assign, place="rollout", inputs=asked)


def add_greedy_responses(recipe: Recipe, run: RunContext) -> None:
    """Add one greedy answer to each prompt, before models take the device back from the engine."""
    settings = run.settings
    recipe.operator(
        generate,
        roles=["rollout"],
        settings=settings.generate.greedily(settings.problems, "greedy"),
        name="greedy_rollout",
        outputs=["greedy_responses", "greedy_sequences"],
        index="greedy_samples",
        prefix="greedy/",
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


def add_scores(recipe: Recipe, run: RunContext, of: str = "") -> None:
    """Add scores of the samples whose values' names have the prefix `of`: by role reward's model if
    there is one, else by the reward function. With batch.refill_rounds they have scores already."""
    if run.settings.refill is not None:
        return
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


def add_set_scores(recipe: Recipe, run: RunContext) -> None:
    """Add the mean score of each set of data.train, where that is a mix."""
    mix = run.problems.train
    if isinstance(mix, MixedSource):
        # Responses of several rounds count their prompts in all rows that were asked.
        rows = {} if run.settings.refill is None else {"rows": "asked"}
        recipe.operator(score_sets, settings=mix, place="actor", inputs=rows)


def add_choice(recipe: Recipe, run: RunContext) -> None:
    """Add the choice of tokens and their weights, if a setting needs it."""
    if run.settings.choose is not None:
        recipe.operator(choose_tokens, settings=run.settings.choose, place="actor")


def add_shaping(recipe: Recipe, run: RunContext) -> dict[str, str]:
    """Add the overlong penalty and smoothing of scores, if set; return the input names for the
    resulting scores."""
    settings, inputs = run.settings, add_penalties(recipe, run)
    if settings.smooth is not None:
        recipe.operator(smooth, settings=settings.smooth, place="actor", inputs=inputs)
        inputs = {"scores": "smoothed_scores"}
    return inputs


def add_penalties(recipe: Recipe, run: RunContext, of: str = "") -> dict[str, str]:
    """Add the overlong penalty, if set, for responses whose values' names have the prefix `of`;
    return the input names for the resulting scores."""
    settings, scores, shaped = run.settings.shape, f"{of}scores", f"{of}shaped"
    if settings is None:
        return {}
    recipe.operator(
        shape_scores,
        settings=settings,
        place="actor",
        name=f"{of}shape_scores",
        inputs={"samples": f"{of}samples", "scores": scores},
        outputs=[shaped],
        prefix=of.replace("_", "/"),
    )
    return {scores: shaped}


def add_log_probs(recipe: Recipe, run: RunContext) -> None:
    """Add the passes for old and reference log-probs, and the KL penalty on the reward, if the run
    needs them."""
    settings, kl = run.settings, run.config.algorithm.kl
    if log_probs_before(run.config, settings.loss, settings.advantage):
        recipe.operator(old_log_probs, roles=["actor"], settings=settings.old_log_probs)
    if kl.placement != "none":
        recipe.operator(ref_log_probs, roles=["reference"], settings=settings.temperature)
    if kl.placement == "reward":
        recipe.operator(kl_in_reward, settings=settings.kl, place="actor", name="kl_penalty")


def add_process_rewards(recipe: Recipe, run: RunContext) -> None:
    """Add the process reward model's update on the scores, and then its rewards of tokens, as in
    verl's recipe/prime by default (`update: before`)."""
    settings = run.settings.prm
    recipe.operator(
        ref_log_probs,
        roles=[PRM_REFERENCE],
        settings=1.0,
        name="prm_ref_log_probs",
        outputs=["prm_reference"],
    )
    recipe.operator(update_prm, roles=[PRM], settings=settings)
    recipe.operator(process_rewards, roles=[PRM], settings=settings)
