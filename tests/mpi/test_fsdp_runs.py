"""Whole runs with fully_shard: what one engine saves the other takes up."""

import json

import pytest

from tests.mpi.recipe_runs import RECIPES, ROLLOUT, assert_same, configure, finish, write_reward

pytestmark = pytest.mark.world(2)
ENGINES = {"megatron": {"tensor_parallel": 2}, "fsdp": {"engine": "fsdp"}}
HYBRID = {"engine": "fsdp", "fsdp": {"shard_size": 2, "forward_prefetch": True}}
SAME = ("actor/loss", "actor/grad_norm", "actor/kl", "actor/entropy", "critic/score/mean")


def test_grpo_goes_from_one_engine_to_the_other_and_back(here, tiny_model, shared_directory):
    """Three steps by Megatron-core alone, and by Megatron-core, fully_shard and Megatron-core: with
    the same samples, of weights that are the same but for rounding."""
    reward = write_reward(here, shared_directory)

    def run(name: str, step: int, engine: str):
        return finish(
            here,
            configure(
                name,
                tiny_model("qwen2", True),
                shared_directory,
                recipe="rl",
                steps=step,
                parallel=ENGINES[engine],
                algorithm={"kl": {"placement": "loss", "coefficient": 0.1}},
                reward={"function": reward},
                # A rollout engine of its own for every rank, whatever trains.
                rollout={**ROLLOUT, "grouping": "contiguous"},
                checkpoint={"resume": "auto", "every": 1},
            ),
        )

    alone = run("alone", 3, "megatron")
    for step, engine in enumerate(("megatron", "fsdp", "megatron"), 1):
        passed_on = run("passed-on", step, engine)
        facts = json.loads((shared_directory / "runs" / "passed-on" / "facts.json").read_text())
        assert ("fully_shard" in facts["training layers"]) == (engine == "fsdp")
    assert_same(passed_on, alone, SAME, rel=1e-5)


@pytest.mark.parametrize("tensor_parallel", [1, 2])
def test_grpo_generates_with_vllm(here, tiny_model, shared_directory, tensor_parallel):
    """What verl's users have: the weights that vLLM has in each step are those that were trained,
    and no byte came for nothing."""
    vllm = ROLLOUT | {"engine": "vllm", "kv_cache_gib": 0.05, "tensor_parallel": tensor_parallel}
    heads = {"hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2}
    config = configure(
        f"vllm-{tensor_parallel}",
        tiny_model("qwen2", True, **heads),
        shared_directory,
        recipe="rl",
        steps=3,
        optimizer={"lr": 1e-2},
        parallel=ENGINES["fsdp"],
        reward={"function": write_reward(here, shared_directory)},
        rollout=vllm,
    )
    steps = finish(here, config)
    assert len(steps) == 3
    assert all(row["actor/grad_norm"] > 0 for row in steps)
    assert all(row["training/rollout_log_probs_diff_max"] < 1e-4 for row in steps)
    assert all(row["reshard/received_bytes"] == row["reshard/minimum_bytes"] > 0 for row in steps)


@pytest.mark.slow(reason="a further case; run with --slow")
def test_a_critic_of_one_engine_beside_an_actor_of_the_other(here, tiny_model, shared_directory):
    reward, found = write_reward(here, shared_directory), {}
    for engine, parallel in ENGINES.items():
        critic = {"parallel": parallel, "optimizer": {"lr": 1e-4}}
        more = RECIPES["ppo"] | {"roles": {"critic": critic}, "reward": {"function": reward}}
        model = tiny_model("llama", False)
        found[engine] = finish(here, configure(f"ppo-{engine}", model, shared_directory, **more))
    assert_same(found["fsdp"], found["megatron"], ("critic/", "actor/loss"), rel=1e-3)


@pytest.mark.slow(reason="a further case; run with --slow")
@pytest.mark.world(4)
def test_groups_of_ranks_with_copies_train_as_all_ranks_do(here, tiny_model, shared_directory):
    """PPO, and with the critic alone divided so."""
    reward, rows_of = write_reward(here, shared_directory), {}
    sharded = ENGINES["fsdp"]
    for name, actor, critic in (
        ("all", sharded, sharded),
        ("hybrid", HYBRID, HYBRID),
        ("critic", sharded, HYBRID),
    ):
        roles = {"critic": {"parallel": critic, "optimizer": {"lr": 1e-4}}}
        more = RECIPES["ppo"] | {"roles": roles, "reward": {"function": reward}, "parallel": actor}
        model = tiny_model("llama", False)
        run = configure(f"copies-{name}", model, shared_directory, **more)
        rows_of[name] = finish(here, run)
    for name in ("hybrid", "critic"):
        assert_same(rows_of[name], rows_of["all"], ("critic/", "actor/loss"), rel=1e-3)
