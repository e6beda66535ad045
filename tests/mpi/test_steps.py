"""A whole step of every recipe computes the same on every layout."""

import json

import pytest

from verl_hpc.config.load import parse_config
from verl_hpc.trainer.train import train

pytestmark = pytest.mark.world(4)

LAYOUTS = {
    "dp4": {},
    "tp2-dp2": {"tensor_parallel": 2, "sequence_parallel": True},
    "pp2-dp2": {"pipeline_parallel": 2},
    "tp2-pp2": {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2},
}
RECIPES = {
    "sft": {},
    "grpo": {"algorithm": {"kl": {"placement": "loss", "coefficient": 0.1}}},
    "ppo": {
        "algorithm": {
            "aggregation": "seq-mean-token-mean",
            "advantage": {"name": "gae", "gamma": 0.98, "lam": 0.9},
            "kl": {"placement": "reward", "coefficient": 0.1},
        },
        "roles": {"critic": {"optimizer": {"lr": 1e-4}}},
    },
}
REWARD = """
def compute_score(data_source, solution_str, ground_truth, extra_info=None):
    return (sum(map(ord, solution_str)) % 5) / 4
"""


@pytest.fixture(scope="module")
def metrics(here, tiny_model, shared_directory):
    """`metrics(recipe, layout)`: of the two steps of a run."""
    reward = shared_directory / "reward.py"
    if here.world.rank == 0:
        reward.write_text(REWARD)
    here.control.barrier()
    known = {}

    def get(recipe, layout):
        if (recipe, layout) not in known:
            known[recipe, layout] = _run(here, tiny_model(), shared_directory, recipe, layout)
        return known[recipe, layout]

    return get


def _run(here, model, directory, recipe, layout):
    tree = {
        "name": f"{recipe}-{layout}",
        "recipe": recipe,
        "steps": 2,
        "directory": str(directory / "steps"),
        "model": {"path": str(model), "dtype": "float32"},
        "parallel": LAYOUTS[layout],
        "optimizer": {"lr": 1e-5},
        "batch": {
            "size": 6,
            "mini_batches": 2,
            "update_epochs": 2,
            "max_tokens_per_micro_batch": 200,
        },
        # Its samples are drawn on the same ranks in the same batches whatever trains them.
        "rollout": {
            "engine": "hf",
            "grouping": "contiguous",
            "temperature": 1.2,
            "num_samples": 4,
            "max_prompt_tokens": 96,
            "overlong_prompt": "drop",
            "max_response_tokens": 12,
        },
        "data": {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 30}},
        "reward": {"function": f"{directory}/reward.py:compute_score"},
        "checkpoint": {"resume": "never"},
        "metrics": {"terminal": "off", "report": False},
    }
    train(here, parse_config(tree | RECIPES[recipe]))
    here.control.barrier()
    rows = (directory / "steps" / tree["name"] / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "dp4"])
@pytest.mark.parametrize("recipe", RECIPES)
def test_two_steps_on_every_layout(metrics, recipe, layout):
    expected, found = metrics(recipe, "dp4"), metrics(recipe, layout)
    assert len(expected) == len(found) == 2
    compared = 0
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.keys() == theirs.keys()
        for name, number in theirs.items():
            if name.startswith(("actor/", "critic/", "score", "reward", "sft/", "response")):
                assert mine[name] == pytest.approx(number, rel=1e-4, abs=1e-5), name
                compared += 1
    assert compared >= 4
    if recipe != "sft":
        assert 0 < expected[-1]["critic/score/mean"] < 1
