"""A whole step of SFT, GRPO and PPO computes the same on every layout."""

from itertools import product

import pytest

from tests.mpi.recipe_runs import BATCH, RECIPES, SAME_DRAWS, run, write_reward
from tests.slow import all_slow

pytestmark = pytest.mark.world(4)

LAYOUTS = {
    "dp4": {},
    "tp2-dp2": {"tensor_parallel": 2, "sequence_parallel": True},
    "pp2-dp2": {"pipeline_parallel": 2},
    "cp2-dp2": {"context_parallel": 2},
    "tp2-pp2": {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2},
}
SETTINGS = {
    "optimizer": {"lr": 1e-5},
    "batch": BATCH | {"update_epochs": 2, "shuffle_mini_batches": "samples"},
    "rollout": SAME_DRAWS | {"num_samples": 4},
}
"""Settings of the two steps."""


@pytest.fixture(scope="module")
def metrics(here, tiny_model, shared_directory):
    """`metrics(recipe, layout)`: of the two steps of a run."""
    known = {}

    def get(recipe, layout):
        function = "score_tokens" if recipe == "ppo" else "compute_score"
        reward = {"function": write_reward(here, shared_directory, function)}
        if (recipe, layout) not in known:
            known[recipe, layout] = run(
                here,
                f"{recipe}-{layout}",
                tiny_model(),
                shared_directory,
                parallel=LAYOUTS[layout],
                **SETTINGS,
                reward=reward,
                **RECIPES[recipe],
            )
        return known[recipe, layout]

    return get


OFTEN = [("sft", "tp2-dp2"), ("grpo", "cp2-dp2"), ("chosen-tokens", "pp2-dp2"), ("ppo", "tp2-pp2")]
"""Each recipe and each layout once."""
OTHERS = [case for case in product(RECIPES, LAYOUTS) if case not in OFTEN and case[1] != "dp4"]


@pytest.mark.parametrize(("recipe", "layout"), [*OFTEN, *all_slow(*OTHERS)])
def test_two_steps_on_every_layout(metrics, recipe, layout):
    expected, rows = metrics(recipe, "dp4"), metrics(recipe, layout)
    assert len(expected) == len(rows) == 2
    compared = 0
    for mine, theirs in zip(rows, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, number in theirs.items():
            if name.startswith(("actor/", "critic/", "score", "reward", "sft/", "response")):
                assert mine[name] == pytest.approx(number, rel=1e-4, abs=1e-5), name
                compared += 1
    assert compared >= 4
    if recipe != "sft":
        assert 0 < expected[-1]["critic/score/mean"] < 1
