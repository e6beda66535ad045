"""Small runs on four ranks whose roles are placed as a test asks."""

import json
from pathlib import Path

from tests.mpi.test_steps import RECIPES, REWARD
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.config.load import parse_config
from verl_hpc.layout.box import Box
from verl_hpc.trainer.train import train


def configure(directory, model, name, recipe, **changes):
    tree = {
        "name": name,
        "recipe": recipe,
        "steps": 4,
        "directory": str(directory / "placed"),
        "model": {"path": str(model), "dtype": "float32"},
        "optimizer": {"lr": 1e-4},
        "batch": {
            "size": 6,
            "mini_batches": 2,
            "update_epochs": 2,
            "max_tokens_per_micro_batch": 200,
        },
        "rollout": {
            "engine": "hf",
            "temperature": 1.2,
            "num_samples": 4,
            "max_prompt_tokens": 96,
            "overlong_prompt": "drop",
            "max_response_tokens": 12,
        },
        "data": {"train": {"kind": "reasoning_gym", "task": "chain_sum", "size": 30}},
        "reward": {"function": f"{directory}/reward.py:compute_score"},
        "metrics": {"terminal": "off", "report": False},
    }
    return parse_config(tree | RECIPES.get(recipe, {}) | changes)


def run(here, config):
    """Train, and give the lines of its metrics on every rank."""
    if here.world.rank == 0:
        Path(config.reward.function.rpartition(":")[0]).write_text(REWARD)
    here.control.barrier()
    train(here, config)
    here.control.barrier()
    rows = (config.run_directory / "metrics.jsonl").read_text().splitlines()
    return [json.loads(row) for row in rows]


def weights_of(config, step, component="actor"):
    """All tensors of a component of a checkpoint, whole."""
    path = config.run_directory / "checkpoints" / step_name(step)
    head = "language_model" if component == "actor" else "value"
    opened = open_weights(path, component, head=head)
    return opened.read({n: Box.whole(s.shape) for n, s in opened.tensors.items()})
