"""ReMax: the greedy answers of a step are scored apart, wherever models and scorer are."""

import pytest

from tests.mpi.recipe_runs import assert_same, run, write_reward

pytestmark = pytest.mark.world(4)

ALGORITHM = {"advantage": {"name": "remax"}, "kl": {"placement": "reward", "coefficient": 0.1}}


def test_placed_apart_it_computes_the_same(here, tiny_model, shared_directory):
    def runs(name, **placement):
        return run(
            here,
            f"remax-{name}",
            tiny_model(),
            shared_directory,
            recipe="rl",
            reward={"function": write_reward(here, shared_directory)},
            placement=placement,
            algorithm=ALGORITHM,
        )

    together = runs("together", rollout=0)
    apart = runs("apart", actor="0-1", rollout=0, reference=2, reward=3)
    assert_same(apart, together, ("actor/", "critic/", "greedy/", "response"))
    for row in together:
        assert 0 < row["critic/score/mean"] < 1
        assert row["greedy/critic/score/mean"] != row["critic/score/mean"]
