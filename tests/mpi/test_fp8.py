"""Weights that travel in FP8: they are those that vLLM makes of the same weights, bit for bit, in
half the bytes, and vLLM computes with them where they were written."""

from dataclasses import replace

import pytest
import torch

from tests.generated import generated
from tests.mpi import plugin
from tests.mpi.engines_for_tests import (
    build_engine,
    gathered,
    held,
    memory,
    refit,
    rollout_of,
    some_sequences,
    window,
)
from tests.mpi.recipe_runs import ROLLOUT, run, write_reward
from tests.mpi.storages import storage_bytes
from tests.mpi.test_reshard import replicas_for, safetensors_of
from verl_hpc.config.model import ModelConfig, ParallelConfig
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.quantization import quantised_source, scale_name, spread_tensors
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.planner.memory.quantised import quantised_copies
from verl_hpc.planner.memory.rollout import RolloutShape, rollout_weights
from verl_hpc.planner.shape import RoleShape
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.fp8 import Fp8Weights, dequantised

CPU = torch.device("cpu")
FP8 = RolloutConfig(
    quantization="fp8", max_prompt_tokens=32, max_response_tokens=16, kv_cache_gib=0.03
)
SIZES = [(tp, pp, dp) for tp in (1, 2) for pp in (1, 2) for dp in (1, 2)]
SMALL = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2}
"""A rank of two has 32 rows of a head, and its q, k and v begin in the middle of blocks."""


def pairs(size: int):
    return [
        (TrainLayout(tp=tp, pp=pp, dp=dp), rollout_tp)
        for tp, pp, dp in SIZES
        if tp * pp * dp == size
        for rollout_tp in (1, 2)
        if size % rollout_tp == 0
    ]


def pytest_generate_tests(metafunc):
    if "pair" in metafunc.fixturenames:
        metafunc.parametrize(
            "pair",
            pairs(plugin.session.world.size),
            ids=lambda p: f"tp{p[0].tp}-pp{p[0].pp}-dp{p[0].dp}-to-tp{p[1]}",
        )


def as_vllm_quantises(tensors, quantised):
    """Whole tensors, quantised by vLLM's own function."""
    from vllm.utils.deep_gemm import per_block_cast_to_fp8

    sent = {name: tensor.bfloat16() for name, tensor in tensors.items()}
    for name in quantised:
        sent[name], sent[scale_name(name)] = per_block_cast_to_fp8(sent[name])
    return sent


def sent(here, trainer, target):
    """The plan, and this rank's source."""
    source = quantised_source(trainer.shard_map, target)
    plan = plan_transfer(source, target, here.world.node_of, 1 << 16)
    fp8 = Fp8Weights(trainer.shard_map, source, here.world.rank, torch.bfloat16, CPU)
    return plan, fp8.quantised(trainer.weights)


def dtypes_of(target):
    return {name: getattr(torch, spec.dtype) for name, spec in target.tensors.items()}


def check_arrived(here, target, got, expected):
    for region in target.held_by(here.world.rank):
        arrived = held(got, region)
        wanted = expected[region.tensor][region.box.slices]
        assert arrived.dtype == wanted.dtype
        same = arrived.contiguous().view(torch.uint8).equal(wanted.contiguous().view(torch.uint8))
        assert same, region


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_weights_are_those_that_vllm_quantises(here, tiny_model, pair, dtype):
    layout, rollout_tp = pair
    sizes = SMALL if rollout_tp == 1 else SMALL | {"hidden_size": 512, "intermediate_size": 1024}
    directory = tiny_model("qwen2", False, **sizes, **HEADS)
    trainer = build_engine(here, directory, layout, lr=None, dtype=dtype)
    sent_as_vllm_quantises(here, directory, trainer, rollout_tp, 7)


def test_experts_are_those_that_vllm_quantises(here, tiny_model, pair):
    layout, rollout_tp = pair
    size = 128 * rollout_tp
    sizes = {"hidden_size": 2 * size, "moe_intermediate_size": size, "num_hidden_layers": 2}
    experts = {"num_experts": 4, "num_experts_per_tok": 2}
    directory = tiny_model("qwen3_moe", False, **sizes, **experts, **HEADS)
    trainer = build_engine(
        here, directory, layout, sequence_parallel=layout.tp > 1, lr=None, dtype="bfloat16"
    )
    sent_as_vllm_quantises(here, directory, trainer, rollout_tp, 4 + 3 * 4)


def sent_as_vllm_quantises(here, directory, trainer, rollout_tp, per_layer):
    """So many tensors of each layer, in the fewest bytes."""
    layout, rank = trainer.layout, here.world.rank
    target = rollout_shard_map(FP8, trainer.arch, replicas_for(layout, rollout_tp), "bfloat16")
    quantised = {n for n, s in target.tensors.items() if s.dtype == "float8_e4m3fn"}
    assert len(quantised) == per_layer * trainer.arch.num_layers

    plan, source = sent(here, trainer, target)
    made = [t for n, t in source.items() if t is not trainer.weights.get(n)]
    shape = RolloutShape.of(trainer.arch, FP8, "bfloat16", on_gpu=False)
    role = RoleShape.of(trainer.arch, layout, ModelConfig(path="none"), ParallelConfig())
    stage = layout.grid.coordinates(rank)["pp"]
    assert storage_bytes(made) == quantised_copies(role, stage, shape)
    got = memory(target, rank)
    stats = Transfer(plan, rank).run(source, got, dtypes_of(target))

    check_arrived(here, target, got, as_vllm_quantises(safetensors_of(directory), quantised))
    assert stats.received_bytes.total() == minimum_received(plan.bundles).get(rank, 0)


@pytest.mark.world(2)
def test_blocks_on_several_ranks_have_one_scale(here, tiny_model):
    """Parts of 192 rows and of 96 columns: a block's largest number may be on either rank."""
    sizes = {"hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 1}
    directory = tiny_model("llama", False, **sizes, num_attention_heads=6, num_key_value_heads=2)
    trainer = build_engine(here, directory, TrainLayout(tp=2), lr=None)
    arch, rank = trainer.arch, here.world.rank
    config = FP8.model_copy(update={"ignored_layers": ["self_attn"]})
    target = rollout_shard_map(config, arch, ((0,), (1,)), "bfloat16")
    names = {n for n, s in target.tensors.items() if s.dtype == "float8_e4m3fn"}
    assert set(spread_tensors(trainer.shard_map, names)) == names
    for name in {r.view.name for r in trainer.shard_map.regions if r.tensor in names}:
        trainer.weights[name].mul_(1 + rank * 3)  # the second rank's part has the largest numbers

    plan, source = sent(here, trainer, target)
    got = memory(target, rank)
    Transfer(plan, rank).run(source, got, dtypes_of(target))

    whole = gathered(here, trainer.shard_map, trainer.weights)
    check_arrived(here, target, got, as_vllm_quantises(whole, names))


@pytest.mark.world(2)
@pytest.mark.parametrize("ignored", [(), ("layers.0", "down_proj")], ids=["all", "some"])
@pytest.mark.parametrize("rollout_tp", [1, 2])
def test_vllm_computes_with_what_was_written(here, tiny_model, ignored, rollout_tp):
    rank = here.world.rank
    sizes = SMALL | {"hidden_size": 512, "intermediate_size": 1024}
    directory = tiny_model("qwen2", False, **sizes, **HEADS)
    trainer = build_engine(here, directory, TrainLayout(tp=2), lr=None)
    config = FP8.model_copy(update={"ignored_layers": list(ignored)})
    replicas = replicas_for(TrainLayout(tp=2), rollout_tp)
    rollout = rollout_of(here, directory, replicas, config, "bfloat16")
    check_parameters(rollout.shard_map, rank, rollout.weights, "vllm")
    shape = RolloutShape.of(trainer.arch, config, "bfloat16", on_gpu=False)
    shape = replace(shape, tp=rollout_tp)
    assert storage_bytes(rollout.weights.values()) == rollout_weights(shape)
    plan, source = sent(here, trainer, rollout.shard_map)
    refit(rollout, Transfer(plan, rank), source, dtypes_of(rollout.shard_map))

    replica = replica_of(replicas, rank)
    prompts = [s[:20].tolist() for s in some_sequences(4, 256, seed=replica)]
    responses = generated(rollout, prompts, Sampling(max_tokens=8), seeds=range(4))
    rollout.close()
    # The trainer computes with what the engine was sent, dequantised.
    round_weights(trainer, source, rank)
    for other in here.control.allgather((prompts, [r.tokens for r in responses])):
        outputs = trainer.infer([torch.tensor([*p, *t]) for p, t in zip(*other, strict=True)])
        if other[0] == prompts:
            mine = outputs
    for prompt, response, output in zip(prompts, responses, mine, strict=True):
        torch.testing.assert_close(
            output.log_probs[len(prompt) - 1 :], torch.tensor(response.log_probs), atol=0.1, rtol=0
        )


def round_weights(trainer, source, rank):
    """To bfloat16, or to what FP8 stands for."""
    for region in trainer.shard_map.held_by(rank):
        weight = window(trainer.weights, region)
        if source[region.view.name].dtype == torch.float8_e4m3fn:
            grid = source[scale_name(region.tensor)]
            values = torch.zeros(trainer.shard_map.tensors[region.tensor].shape)
            values = values.to(torch.float8_e4m3fn)
            values[region.box.slices] = held(source, region)
            weight.copy_(dequantised(values, grid, torch.bfloat16)[region.box.slices])
        else:
            weight.copy_(weight.bfloat16())
    trainer.weights_changed()


@pytest.mark.world(2)
def test_runs_train_on_what_a_quantised_engine_samples(here, tiny_model, shared_directory):
    """Two steps, with the fewest bytes; the probe tells by how little the two differ."""
    directory = tiny_model("llama", False, **SMALL, num_attention_heads=2, num_key_value_heads=2)

    def received(name, **rollout):
        settings = {"algorithm": {"correction": {}}, "placement": {"actor": 0, "rollout": 1}}
        settings["rollout"] = ROLLOUT | {"engine": "vllm", "kv_cache_gib": 0.05, **rollout}
        settings["reward"] = {"function": write_reward(here, shared_directory)}
        rows = run(here, f"fp8-{name}", directory, shared_directory, recipe="rl", **settings)
        assert len(rows) == 2
        for row in rows:
            assert row["reshard/received_bytes"] == row["reshard/minimum_bytes"] > 0
            assert 0 < row["training/rollout_log_probs_diff_mean"] < 0.1
        return rows[0]["reshard/received_bytes"]

    linear = 2 * (4 * 256 * 256 + 3 * 256 * 512)
    saved = received("bfloat16", dtype="bfloat16") - received("fp8", quantization="fp8")
    assert saved == 2 * linear - (linear + 4 * linear // 128**2)
