"""Built-in recipes, and recipes from a user's file."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from verl_hpc.errors import FlowError, VerlHpcError
from verl_hpc.rewards.guard import describe
from verl_hpc.rewards.user_code import load_function
from verl_hpc.trainer.context import RunContext
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.trainer.recipes.distillation import distillation
from verl_hpc.trainer.recipes.dpo import dpo
from verl_hpc.trainer.recipes.kto import kto
from verl_hpc.trainer.recipes.reward_model import reward_model
from verl_hpc.trainer.recipes.rl import rl
from verl_hpc.trainer.recipes.sft import sft

BUILT_IN: Mapping[str, Callable[[RunContext], Recipe]] = {
    "sft": sft,
    "rl": rl,
    "reward_model": reward_model,
    "distillation": distillation,
    "dpo": dpo,
    "kto": kto,
}


def find_recipe(name: str, import_timeout_s: float) -> Callable[[RunContext], Recipe]:
    """Return the function that `RunConfig.recipe` names.

    Raises:
        FlowError: its file cannot be loaded, or lacks the function.
    """
    if name in BUILT_IN:
        return BUILT_IN[name]
    return load_function(name, import_timeout_s, "recipe", FlowError)


def make_recipe(run: RunContext, function: Callable[[RunContext], Recipe]) -> Recipe:
    """Make a recipe for a run, and check it; of a run with tasks, the recipes of all.

    Raises:
        RewardError: an evaluation set's reward function cannot be used.
        FlowError: the function raises or does not return a Recipe, its flow is inconsistent, an
            operator needs a role that the run lacks, a role is unused, or there is no way to
            evaluate.
    """
    if run.tasks:
        return _of_tasks(run, function)
    name = run.config.recipe
    try:
        recipe = function(run)
    except VerlHpcError:
        raise
    except Exception as error:  # code of the user
        raise FlowError(f"recipe = {name}: {describe(error)}") from error
    if not isinstance(recipe, Recipe):
        raise FlowError(f"recipe = {name}: it gives {type(recipe).__name__}, expected a Recipe")
    if run.config.evaluation.wanted and recipe.evaluation is None and run.rollout is None:
        raise FlowError(
            f"recipe = {name}: it has no evaluation of its own, and nothing generates answers to "
            "score; set recipe.evaluation, or choose rollout.engine: vllm"
        )
    if recipe.evaluation is not None and run.config.evaluation.answers_alone:
        raise FlowError(
            f"{run.config.evaluation.answers_alone} with recipe = {name}, which evaluates by a "
            "flow of its own; give its problems as data.evaluation, and leave this out"
        )
    if run.config.evaluation.wanted and recipe.evaluation is None:
        # What is wrong with a set's reward function is found before engines take their time.
        _ = run.settings.evaluation_sets
    evaluates = recipe.evaluation.roles if recipe.evaluation is not None else set()
    _check_settings(run, recipe)
    unused = [role for role in run.roles if role not in recipe.roles | evaluates]
    if unused:
        raise FlowError(
            f"roles.{unused[0]}: no operator of recipe {name} uses this role; leave it out"
        )
    for step in (1, run.num_steps):
        recipe.pipeline(step)
    if recipe.evaluation is not None:
        recipe.evaluation.pipeline()
    return recipe


def _of_tasks(run: RunContext, function: Callable[[RunContext], Recipe]) -> Recipe:
    recipes = {}
    for name, task in run.tasks.items():
        try:
            recipes[name] = make_recipe(task, BUILT_IN.get(task.config.recipe, function))
        except VerlHpcError as error:
            error.args = (f"tasks.{name}: {error}",)
            raise
        run.numbers |= {f"tasks.{name}.{n}": number for n, number in task.numbers.items()}
    if run.config.evaluation.wanted:
        _ = run.settings.evaluation_sets
    first = next(iter(recipes.values()))
    first.of_tasks = recipes
    return first


def _check_settings(run: RunContext, recipe: Recipe) -> None:
    """Raises: FlowError: a user's recipe lacks an operator that a setting needs."""
    if not any(op.name == "update_actor" for op in recipe.operators):
        return
    given = {value for op in recipe.operators for value in op.gives}
    settings = run.settings
    asked = {
        "trained": (settings.choose, "choose_tokens", "correction, overlong or drop_equal_groups"),
        "selected": (settings.select, "select_tokens", "loss or top_entropy"),
        "shaped": (settings.shape, "shape_scores", "overlong.buffer"),
    }
    for value, (wanted, operator, setting) in asked.items():
        if wanted is not None and value not in given:
            raise FlowError(
                f"recipe = {run.config.recipe}: algorithm.{setting} asks for {value!r}, which no "
                f"operator gives; add {operator} of verl_hpc.generation.choose, or leave "
                "the setting out"
            )
