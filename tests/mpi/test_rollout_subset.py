"""Rollout engines on ranks 2 and 3, with weights that ranks 0 and 1 hold."""

import pytest
import torch

from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.rollout import hf_shard_map, rollout_shard_map
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.rollout.factory import build_rollout
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader

pytestmark = pytest.mark.world(4)
LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 16, "kv_cache_gib": 0.03}
PROMPTS = [list(range(5, 5 + n)) for n in (3, 9, 4, 12)]
SHARDED, WHOLE = ((2, 3),), ((2,), (3,))


@pytest.fixture(scope="module")
def directory(tiny_model):
    return tiny_model("qwen2", True, hidden_size=128, num_attention_heads=4, num_key_value_heads=2)


def build(here, directory, replicas, engine="vllm", **changes):
    path, config = str(directory), RolloutConfig(engine=engine, **LIMITS, **changes)
    arch = read_architecture(directory)
    return build_rollout(here.world, arch, path, path, replicas, config, "float32")


def allocate(shard_map, rank):
    """Memory for what a rank holds, without values."""
    sizes = {}
    for region in shard_map.held_by(rank):
        view, steps = region.view, zip(region.box.shape, region.view.strides, strict=True)
        end = view.offset + sum((n - 1) * stride for n, stride in steps) + 1
        sizes[view.name] = max(sizes.get(view.name, 0), end)
    return {name: torch.full((size,), float("nan")) for name, size in sizes.items()}


def source_of(kind, arch):
    if kind == "one rank":
        return hf_shard_map(arch, ((0,),), "float32")
    return megatron_shard_map(arch, TrainLayout(tp=2), dtype="float32")


@pytest.mark.parametrize(
    "kind, engine, replicas",
    [
        ("megatron tp2", "vllm", SHARDED),
        ("megatron tp2", "vllm", WHOLE),
        ("one rank", "vllm", ((3,),)),
        ("megatron tp2", "hf", WHOLE),
    ],
)
def test_weights_of_other_ranks_generate(here, directory, reference, kind, engine, replicas):
    arch, rank = read_architecture(directory), here.world.rank
    source = source_of(kind, arch)
    weights = allocate(source, rank)
    files = plan_transfer(safetensors_shard_map(directory), source, here.world.node_of)
    Transfer(files, rank, SafetensorsReader()).run({}, weights, torch.float32)
    rollout = build(here, directory, replicas, engine)
    index = replica_of(replicas, rank)
    assert (rollout is None) == (index is None)
    config = RolloutConfig(engine=engine, **LIMITS)
    target = rollout_shard_map(config, arch, replicas, "float32")
    plan = plan_transfer(source, target, here.world.node_of)
    least = minimum_received(plan.bundles)
    if rollout is None:
        received = Transfer(plan, rank).run(weights, {}, torch.float32).total_received_bytes
        assert received == 0
        here.control.barrier()
        return
    assert (rollout.shard_map.tensors, rollout.shard_map.regions) == (
        target.tensors,
        target.regions,
    )
    check_parameters(target, rank, rollout.weights, engine)
    try:
        rollout.begin_update()
        received = Transfer(plan, rank).run({}, rollout.weights, torch.float32)
        rollout.finish_update()
        assert received.total_received_bytes == least[rank] > 0
        responses = rollout.generate(
            PROMPTS, Sampling(max_tokens=12), [index * 10 + i for i in range(4)]
        )
        for prompt, response in zip(PROMPTS, responses, strict=True):
            text = torch.tensor([*prompt, *response.tokens])
            with torch.no_grad():
                expected = reference(directory).log_probs(text)[len(prompt) - 1 :]
            found = torch.tensor(response.log_probs)
            torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)
    finally:
        rollout.close()
    here.control.barrier()


def test_an_engine_after_another(here, directory):
    """Groups of the first are gone, also where there was no engine."""
    for chosen in (SHARDED, ((0, 2), (1, 3)), WHOLE):
        rollout = build(here, directory, chosen)
        assert (rollout is None) == (replica_of(chosen, here.world.rank) is None)
        if rollout is not None:
            rollout.close()


def test_ranks_without_an_engine_raise_what_the_others_raise(here, directory):
    with pytest.raises(ConfigError, match="vLLM .* has no such option"):
        build(here, directory, WHOLE, engine_options={"enable_prefix_cache": False})
    with pytest.raises(LayoutError, match="does not divide the model's 4 attention heads"):
        build(here, directory, ((1, 2, 3),))
    with pytest.raises(ConfigError, match=r"rollout.tensor_parallel = 2 with rollout.engine = hf"):
        build(here, directory, SHARDED, "hf")
