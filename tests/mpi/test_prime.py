"""PRIME: the process reward model may be on ranks of its own, in a layout of its own."""

import pytest

from tests.mpi.recipe_runs import assert_same, run, write_reward

pytestmark = pytest.mark.world(4)

ALGORITHM = {"advantage": {"name": "prime"}, "prm": {"beta": 1.0}}


def test_placed_apart_it_computes_the_same(here, tiny_model, shared_directory):
    def runs(name, roles, **placement):
        return run(
            here,
            f"prime-{name}",
            tiny_model(),
            shared_directory,
            recipe="rl",
            reward={"function": write_reward(here, shared_directory)},
            placement=placement,
            roles=roles,
            algorithm=ALGORITHM,
        )

    together = runs("together", {}, rollout=0)
    apart = runs(
        "apart", {"prm": {"parallel": {"tensor_parallel": 2}}}, actor="0-1", rollout=0, prm="2-3"
    )
    # Not prm/accuracy: before the first optimizer step it is that of rounding errors.
    assert_same(apart, together, ("actor/", "critic/", "prm/loss", "prm/grad_norm", "prm/reward"))
    # It has learned before it is asked: rewards are not 0 in the first step either.
    assert all(row["prm/loss"] > 0 and row["prm/reward"] != 0.0 for row in together)
