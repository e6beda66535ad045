"""A batch of one optimizer step needs no forward pass for the log-probs that its ratio starts
from."""

import pytest

from tests.jobs.launch import differing
from tests.mpi.recipe_runs import BATCH, SAME_DRAWS, configure, finish, write_reward
from tests.slow import all_slow

pytestmark = pytest.mark.world(4)

LAYOUTS = {
    "cp2-dp2": {"context_parallel": 2},
    "tp2-pp2": {"tensor_parallel": 2, "pipeline_parallel": 2, "virtual_pipeline": 2},
}


@pytest.mark.parametrize(
    ("sampling", "layout"), [({"top_p": 0.8}, "tp2-pp2"), *all_slow(({}, "cp2-dp2"))]
)
def test_weights_and_metrics_are_the_same_without_the_pass(
    here, tiny_model, shared_directory, layout, sampling
):
    def trained(chosen):
        config = configure(
            f"{layout}-{chosen}",
            tiny_model(num_hidden_layers=4),
            shared_directory,
            recipe="rl",
            parallel=LAYOUTS[layout],
            algorithm={"old_log_probs": chosen},
            batch=BATCH | {"mini_batches": 1},
            rollout=SAME_DRAWS | {"num_samples": 4} | sampling,
            reward={"function": write_reward(here, shared_directory)},
        )
        return config, finish(here, config)

    (with_pass, expected), (without, rows) = trained("recompute"), trained("auto")
    for mine, theirs in zip(rows, expected, strict=True):
        gone = {"timing_s/old_log_probs", "cpu_s/old_log_probs"}
        assert set(theirs) - set(mine) == gone and set(mine) <= set(theirs)
        for name in mine:
            if name.startswith(("actor/", "critic/", "training/", "rollout_corr/")):
                assert mine[name] == theirs[name], name
        assert 0 < mine["training/rollout_log_probs_diff_mean"] < 1e-4
        assert mine["actor/ppo_kl"] == 0
    last = [config.run_directory / "checkpoints" / "latest" for config in (with_pass, without)]
    assert here.world.rank != 0 or differing(*last) == []
