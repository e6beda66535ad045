"""Whole runs of families without a layer table."""

import json

import pytest

from tests.mpi.any_models import (
    BFLOAT16_IN_VLLM,
    NOT_IN_VLLM,
    OTHER_IN_VLLM,
    any_model,
    some_models,
)
from tests.mpi.recipe_runs import RECIPES, ROLLOUT, assert_same, configure, finish, write_reward

pytestmark = pytest.mark.world(2)
SHARDED = {"engine": "fsdp"}


@pytest.mark.slow(reason="every family; run with --slow")
@pytest.mark.parametrize("name", some_models())
def test_grpo_trains(here, shared_directory, name):
    in_vllm = name not in NOT_IN_VLLM | OTHER_IN_VLLM
    half = name in BFLOAT16_IN_VLLM
    engine = {"engine": "vllm", "kv_cache_gib": 0.05} if in_vllm else {}
    config = configure(
        f"grpo-{name}",
        any_model(here, shared_directory, name),
        shared_directory,
        recipe="rl",
        steps=2,
        optimizer={"lr": 1e-2},
        parallel=SHARDED,
        reward={"function": write_reward(here, shared_directory)},
        rollout=ROLLOUT | engine | ({"dtype": "bfloat16"} if half else {}),
    )
    steps = finish(here, config)
    assert len(steps) == 2
    assert all(row["actor/grad_norm"] > 0 for row in steps)
    near = 0.3 if half else 1e-4
    assert all(row["training/rollout_log_probs_diff_max"] < near for row in steps)
    assert all(row["reshard/received_bytes"] == row["reshard/minimum_bytes"] > 0 for row in steps)


FURTHER = pytest.mark.slow(reason="a further family; run with --slow")


@pytest.mark.parametrize("name", ["deepseek_v3", pytest.param("apertus", marks=FURTHER)])
def test_ppo_goes_on_with_other_shards(here, shared_directory, name):
    """Two steps at once, and with a checkpoint between them that is read into other shards; the
    actor and the critic have buffers in it, which are numbers in the second."""
    reward = write_reward(here, shared_directory)
    model = any_model(here, shared_directory, name)
    in_vllm = name not in BFLOAT16_IN_VLLM
    rollout = ROLLOUT | ({"engine": "vllm", "kv_cache_gib": 0.05} if in_vllm else {})

    def run(label, steps, parallel):
        critic = {"parallel": parallel, "optimizer": {"lr": 1e-3}}
        more = RECIPES["ppo"] | {"roles": {"critic": critic}, "reward": {"function": reward}}
        more |= {"parallel": parallel, "steps": steps, "checkpoint": {"resume": "auto", "every": 1}}
        return finish(here, configure(label, model, shared_directory, **more, rollout=rollout))

    alone = run(f"{name}-alone", 2, SHARDED)
    assert all(row["training/rollout_log_probs_diff_max"] < 1e-4 for row in alone)
    (file,) = (shared_directory / "runs").glob(f"{name.replace('_', '-')}-alone/facts.json")
    facts = json.loads(file.read_text())
    assert facts["weights for the rollout"].startswith("whole tensors by their names")
    run(f"{name}-again", 1, SHARDED)
    again = run(f"{name}-again", 2, SHARDED | {"fsdp": {"shard_size": 1}})
    assert_same(again, alone, ("actor/loss", "actor/grad_norm", "critic/"), rel=1e-4)
