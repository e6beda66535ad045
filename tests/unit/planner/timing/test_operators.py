"""The planner's operators are those of the trainer's recipes."""

import pytest

from tests.unit.config.trees import GAE
from tests.unit.trainer.runs import small_run
from verl_hpc.planner.timing.operators import operators_of
from verl_hpc.trainer.recipes import find_recipe, make_recipe

KL = {"algorithm__kl": {"placement": "reward"}}
RUNS = {
    "grpo": {},
    "grpo with log-probs before": {"batch__mini_batches": 2},
    "grpo with a KL in the loss": {"algorithm__kl": {"placement": "loss"}},
    "grpo of half of the tokens": {"algorithm__top_entropy": 0.5},
    "grpo corrected": {"algorithm__correction": {}},
    "ppo": {**GAE, **KL},
    "ppo with a warm-up": {**GAE, "critic__warmup_steps": 1},
    "remax": {"algorithm__advantage": {"name": "remax"}, "rollout__num_samples": 1, **KL},
    "prime": {"algorithm__advantage": {"name": "prime"}, "rollout__num_samples": 2},
    "sft": {"recipe": "sft", "held_out": None},
}
HOST = ("assign", "examples", "pairs", "choose_tokens", "select_tokens", "advantages")


@pytest.mark.parametrize("name", RUNS)
def test_models_compute_what_the_recipe_says(name, tmp_path):
    run = small_run(tmp_path, steps=2, **RUNS[name])
    recipe = make_recipe(run, find_recipe(run.config.recipe, 60.0))
    pipeline = recipe.pipeline(2)
    hosts = {one.name for one in operators_of(run.config) if one.kind == "host"} | {*HOST}
    expected = [
        (item.name, item.operator.placement, item.operator.changes_state)
        for item in pipeline.runs
        if item.name not in hosts
    ]
    planned = [
        (one.name, run.layouts.pool_of[one.role], one.changes_state)
        for one in operators_of(run.config)
        if one.name not in hosts
    ]
    assert planned == expected
