"""Small runs on four ranks whose roles are placed as a test asks."""

import shutil
from pathlib import Path

import torch

from tests.jobs.launch import differing
from tests.mpi import recipe_runs
from tests.mpi.recipe_runs import BATCH, RECIPES, ROLLOUT, write_reward
from verl_hpc.checkpoint.schema import step_name
from verl_hpc.checkpoint.weights import open_weights
from verl_hpc.layout.box import Box

BASE = {"steps": 4, "batch": BATCH | {"update_epochs": 2}, "rollout": ROLLOUT, "checkpoint": {}}


def configure(directory, model, name, recipe, /, **changes):
    function = "score_tokens" if recipe == "ppo" else "compute_score"
    reward = {"function": f"{directory}/reward.py:{function}"}
    settings = {**BASE, "recipe": recipe, "reward": reward, **RECIPES.get(recipe, {}), **changes}
    return recipe_runs.configure(name, model, directory, **settings)


def run(here, config):
    """Train, and give the lines of its metrics on every rank."""
    write_reward(here, Path(config.reward.function).parent)
    return recipe_runs.finish(here, config)


def run_again(here, config, lost, directory):
    """Start a run that has ended once more without its last steps, as one that was killed before.

    Args:
        lost: the numbers of the steps.
        directory: where the last step is kept meanwhile.

    Returns:
        The lines of its metrics, and what differs between the last steps of both.
    """
    checkpoints, last = config.run_directory / "checkpoints", step_name(lost[-1])
    whole = directory / f"{config.name}-whole"
    here.control.barrier()
    if here.world.rank == 0:
        shutil.copytree(checkpoints / last, whole)
        for step in lost:
            shutil.rmtree(checkpoints / step_name(step))
    here.control.barrier()
    rows = recipe_runs.finish(here, config)
    return rows, differing(whole, checkpoints / last) if here.world.rank == 0 else []


def weights_of(config, step, component="actor"):
    """All tensors of a component of a checkpoint, whole."""
    path = config.run_directory / "checkpoints" / step_name(step)
    head = "language_model" if component == "actor" else "value"
    opened = open_weights(path, component, head=head)
    return opened.read({n: Box.whole(s.shape) for n, s in opened.tensors.items()})


def run_ppo(here, config, step=2):
    """Rows of a run's metrics, and the weights of its actor and of its critic after a step."""
    rows = run(here, config)
    return rows, {role: weights_of(config, step, role) for role in ("actor", "critic")}


def assert_close(found, expected):
    """Assert that weights are the same but for rounding."""
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
