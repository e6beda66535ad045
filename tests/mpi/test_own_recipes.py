"""Recipes of examples/ with models on ranks of their own, in layouts of their own."""

from pathlib import Path

import pytest

from examples.letter_values import VALUES, make_scorer
from tests.mpi.placed_runs import run_again
from tests.mpi.recipe_runs import assert_same, configure, finish

pytestmark = pytest.mark.world(4)

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def scorers(here, shared_directory):
    if here.world.rank == 0:
        for name, values in VALUES.items():
            make_scorer(shared_directory / name, values)
    here.control.barrier()
    return {name: {"path": str(shared_directory / name)} for name in VALUES}


def test_a_multiplier_survives_on_ranks_that_do_not_change_it(
    here, tiny_model, shared_directory, scorers
):
    config = configure(
        "safe",
        tiny_model(),
        shared_directory,
        recipe=f"{EXAMPLES}/safe_rlhf.py:safe_rlhf",
        roles={name: {} for name in ("actor", "reference", "critic", "cost_critic")} | scorers,
        # Rank 0, whose state a checkpoint has, is not of the actor's ranks.
        placement={"actor": "2-3", "critic": 0, "reward": 0, "cost_critic": 1, "cost": 1},
        algorithm={"kl": {"placement": "reward", "coefficient": 0.1}},
        checkpoint={"every": 1},
    )
    straight = finish(here, config)
    resumed, differences = run_again(here, config, [2], shared_directory)
    assert_same(resumed, straight, ("safety/", "actor/", "critic/", "cost"), rel=0)
    assert differences == []
    assert straight[0]["safety/multiplier"] != straight[1]["safety/multiplier"]
