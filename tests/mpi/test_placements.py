"""Roles on ranks of their own, in layouts of their own, compute what roles on all ranks do."""

import re
from pathlib import Path

import pytest

from tests.mpi.placed_runs import assert_close, configure, run, weights_of
from tests.mpi.recipe_runs import assert_same
from verl_hpc.metrics.timeline import read_timeline

pytestmark = pytest.mark.world(4)

PAGE = (Path(__file__).parents[2] / "docs/placements.md").read_text()
SAME = {"placement": {"rollout": 0}}
"""Responses are drawn on one rank, whatever trains."""
METRICS = ("actor/", "critic/", "response", "prompt", "training/")
PLACED = {
    "all-on-one-rank": ("ppo", {"placement": {"train": 0, "rollout": 0, "reward": "1-3"}}),
    "overlapping-in-part": ("ppo", {"placement": {"actor": "0-1", "critic": "1-3", "rollout": 0}}),
    "reference-and-rollout-apart": (
        "grpo",
        {"placement": {"train": "0-1", "reference": 3, "rollout": 2}},
    ),
}


@pytest.fixture(scope="module")
def together(here, tiny_model, shared_directory):
    """`together(recipe)`: metrics of the run with all roles on all ranks."""
    known = {}

    def get(recipe):
        if recipe not in known:
            config = configure(shared_directory, tiny_model(), f"{recipe}-all", recipe, **SAME)
            known[recipe] = run(here, config), weights_of(config, 4)
        return known[recipe]

    return get


def test_ppo_split_equals_all_together(here, tiny_model, shared_directory):
    """As configs/run/ppo_split.yaml is placed, and without a placement. What vLLM draws does not
    depend on who draws what."""
    found = []
    for name, placement in (
        ("whole", {}),
        ("split", {"actor": "0-1", "critic": 2, "reward": 3}),
    ):
        config = configure(
            shared_directory,
            tiny_model(hidden_size=128, num_attention_heads=4, num_key_value_heads=2, head_dim=32),
            name,
            "ppo",
            parallel={"tensor_parallel": 2},
            roles={"critic": {"optimizer": {"lr": 1e-4}, "parallel": {}}},
            placement=placement,
            rollout={
                "num_samples": 2,
                "max_prompt_tokens": 160,
                "max_response_tokens": 12,
                "kv_cache_gib": 0.05,
            },
        )
        rows = run(here, config)
        found.append((rows, weights_of(config, 4), weights_of(config, 4, "critic")))
    (rows, *weights), (split_rows, *split_weights) = found
    assert len(rows) == 4
    assert_same(split_rows, rows, METRICS)
    for mine, theirs in zip(split_weights, weights, strict=True):
        assert_close(mine, theirs)
    (drawn,) = re.findall(r"^```\n(rl\(rows\)\n.*?)^```$", PAGE, re.DOTALL | re.MULTILINE)
    assert drawn in (config.run_directory / "flow.txt").read_text()


@pytest.mark.parametrize("name", PLACED)
def test_four_steps_equal_those_of_all_ranks(here, tiny_model, shared_directory, together, name):
    recipe, changes = PLACED[name]
    config = configure(shared_directory, tiny_model(), name, recipe, **changes)
    found, weights = run(here, config), weights_of(config, 4)
    expected, theirs = together(recipe)
    assert len(found) == 4
    assert_same(found, expected, METRICS)
    assert_close(weights, theirs)


ONE_RANK = {"train": 0, "rollout": 0, "reward": "1-3"}
FEW_PASSES = {"size": 4, "mini_batches": 2, "max_tokens_per_micro_batch": 2000}
APART = {
    "sizes-of-their-own": {"placement": {"actor": "0-1", "critic": "2-3", "rollout": 0}},
    "layouts-of-their-own": {
        "parallel": {"tensor_parallel": 2, "pipeline_parallel": 2},
        "placement": {"rollout": 0},
    },
}


@pytest.mark.parametrize("name", APART)
def test_critics_of_their_own_as_on_one_rank(here, tiny_model, shared_directory, name):
    """A smaller critic on other ranks; and the actor as TP2 x PP2 with the critic as TP4."""
    sizes = {"num_hidden_layers": 2, "hidden_size": 32, "intermediate_size": 64}
    critic = {"optimizer": {"lr": 1e-3}}
    wide = {"parallel": {"tensor_parallel": 4, "sequence_parallel": True}}
    if name == "sizes-of-their-own":
        critic["path"], wide = str(tiny_model(**sizes)), {}
    found = []
    for suffix, changes, own in (
        ("one", {"placement": ONE_RANK}, {}),
        ("apart", APART[name], wide),
    ):
        config = configure(
            shared_directory,
            tiny_model(),
            f"{name}-{suffix}",
            "ppo",
            steps=2,
            batch=FEW_PASSES,
            roles={"critic": critic | own},
            **changes,
        )
        rows = run(here, config)
        found.append((rows, weights_of(config, 2), weights_of(config, 2, "critic")))
    (one, *theirs), (apart, *mine) = found
    for a, b in zip(one, apart, strict=True):
        for metric in ("critic/vf_loss", "critic/grad_norm", "actor/pg_loss", "actor/grad_norm"):
            assert b[metric] == pytest.approx(a[metric], rel=1e-5, abs=1e-5), metric
    for found_weights, expected in zip(mine, theirs, strict=True):
        assert_close(found_weights, expected)


SLEEPERS = """
import time
from verl_hpc.step.operators.assign import assign
from verl_hpc.generation.generate import generate
from verl_hpc.trainer.recipe import Recipe
from verl_hpc.step.operator import operator


@operator("one")
def sleep_here(place, samples):
    time.sleep(1.0)
    return place.rank, {"slept/here": 1.0}


@operator("two")
def sleep_there(place, samples):
    time.sleep(1.0)
    return place.rank, {"slept/there": 1.0}


@operator(changes_state=True)
def use(place, role, samples):
    return (), {}


def sleepers(run):
    recipe = Recipe("sleepers", run)
    recipe.operator(generate, roles=["rollout"], settings=run.settings.generate, name="rollout")
    recipe.operator(assign, settings=run.settings.assign, place="rollout")
    recipe.operator(sleep_here, place="actor")
    # A change on the actor's ranks is none of the others' business.
    recipe.operator(use, roles=["actor"], name="change", inputs={"samples": "one"})
    recipe.operator(sleep_there, place="critic")
    recipe.operator(use, roles=["actor"], name="use_actor")
    recipe.operator(use, roles=["critic"], name="use_critic")
    return recipe
"""


def test_operators_on_ranks_of_their_own_overlap(here, tiny_model, shared_directory):
    """By construction: nothing tells the one to wait for the other."""
    file = shared_directory / "sleepers.py"
    if here.world.rank == 0:
        file.write_text(SLEEPERS)
    here.control.barrier()
    config = configure(
        shared_directory,
        tiny_model(),
        "sleepers",
        f"{file}:sleepers",
        steps=4,
        batch={"size": 2},
        roles={"actor": {}, "critic": {}},
        placement={"actor": "0-1", "critic": "2-3", "rollout": 0},
        reward={"function": f"{shared_directory}/reward.py:compute_score"},
    )
    rows = run(here, config)
    assert all(row["slept/here"] == row["slept/there"] == 1.0 for row in rows)
    intervals = [i for i in read_timeline(config.run_directory, None) if "sleep" in i.operator]
    for step in (1, 2, 3):
        mine = [i for i in intervals if i.step == step and i.operator == "sleep_here"]
        theirs = [i for i in intervals if i.step == step and i.operator == "sleep_there"]
        assert {i.rank for i in mine} == {0, 1} and {i.rank for i in theirs} == {2, 3}
        overlap = min(i.stop for i in mine + theirs) - max(i.start for i in mine + theirs)
        assert overlap > 0, "seconds that all four slept at once"
