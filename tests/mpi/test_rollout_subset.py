"""Rollout engines on ranks 2 and 3, with weights that ranks 0 and 1 hold."""

from contextlib import closing

import pytest
import torch

from tests.generated import generated
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import memory, refit, rollout_of
from tests.mpi.test_rollout import check_log_probs
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.rollout import hf_shard_map, rollout_shard_map
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader

pytestmark = pytest.mark.world(4)
LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 16, "kv_cache_gib": 0.03}
PROMPTS = [list(range(5, 5 + n)) for n in (3, 9, 4, 12)]
SHARDED, WHOLE = ((2, 3),), ((2,), (3,))


@pytest.fixture(scope="module")
def directory(tiny_model):
    return tiny_model("qwen2", True, **VLLM_HEADS)


def build(here, directory, replicas, engine="vllm", **changes):
    config = RolloutConfig(engine=engine, **LIMITS, **changes)
    return rollout_of(here, directory, replicas, config)


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
    weights = memory(source, rank)
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
    assert rollout.shard_map == target
    check_parameters(target, rank, rollout.weights, engine)
    with closing(rollout):
        stats = refit(rollout, Transfer(plan, rank), {})
        assert stats.total_received_bytes == least[rank] > 0
        seeds = [index * 10 + i for i in range(4)]
        responses = generated(rollout, PROMPTS, Sampling(max_tokens=12), seeds)
        for prompt, response in zip(PROMPTS, responses, strict=True):
            check_log_probs(reference(directory).model, prompt, response, 1.0, atol=1e-4)
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
