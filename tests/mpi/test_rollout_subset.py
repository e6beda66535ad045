"""Rollout engines on some of the ranks, with weights that others hold, and in pipeline stages."""

from __future__ import annotations

from contextlib import closing

import pytest
import torch

from tests.generated import generated
from tests.mpi.conftest import VLLM_HEADS
from tests.mpi.engines_for_tests import loaded_rollout, memory, refit, rollout_of
from tests.mpi.test_rollout import PROMPTS, check_log_probs
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import ConfigError, LayoutError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.megatron import TrainLayout, megatron_shard_map
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.rollout import rollout_shard_map, whole_shard_map
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader

pytestmark = pytest.mark.world(4)
LIMITS = RolloutConfig(max_prompt_tokens=32, max_response_tokens=16, kv_cache_gib=0.03)
SEEDS, GREEDY = [1, 2, 3, 4], Sampling(max_tokens=12, temperature=0.0)
SHARDED, WHOLE = ((2, 3),), ((2,), (3,))


@pytest.fixture(scope="module")
def directory(tiny_model):
    return tiny_model("qwen2", True, **VLLM_HEADS)


def build(here, directory, replicas, **changes):
    return rollout_of(here, directory, replicas, LIMITS.model_copy(update=changes))


@pytest.mark.parametrize(
    "source_of, engine, replicas",
    [
        ("megatron tp2", "vllm", SHARDED),
        ("megatron tp2", "vllm", WHOLE),
        ("one rank", "vllm", ((3,),)),
        ("megatron tp2", "hf", WHOLE),
    ],
)
def test_weights_of_other_ranks_generate(here, directory, reference, source_of, engine, replicas):
    """Ranks 0 and 1, or 0 alone, hold the weights."""
    arch, rank = read_architecture(directory), here.world.rank
    source = megatron_shard_map(arch, TrainLayout(tp=2), dtype="float32")
    if source_of == "one rank":
        source = whole_shard_map(arch, ((0,),), "float32")
    weights = memory(source, rank)
    files = plan_transfer(safetensors_shard_map(directory), source, here.world.node_of)
    Transfer(files, rank, SafetensorsReader()).run({}, weights, torch.float32)
    rollout = build(here, directory, replicas, engine=engine)
    index = replica_of(replicas, rank)
    assert (rollout is None) == (index is None)
    config = LIMITS.model_copy(update={"engine": engine})
    target = rollout_shard_map(config, arch, replicas, "float32")
    plan = plan_transfer(source, target, here.world.node_of)
    if rollout is None:
        received = Transfer(plan, rank).run(weights, {}, torch.float32).received_bytes.total()
        assert received == 0
    else:
        with closing(rollout):
            stats = refit(rollout, Transfer(plan, rank), {})
            assert stats.received_bytes.total() == minimum_received(plan.bundles)[rank] > 0
            seeds = [index * 10 + i for i in range(4)]
            responses = generated(rollout, PROMPTS, Sampling(max_tokens=12), seeds)
            for prompt, response in zip(PROMPTS, responses, strict=True):
                check_log_probs(reference(directory).model, prompt, response, 1.0, atol=1e-4)
    here.control.barrier()


@pytest.mark.parametrize(
    "family, tied, replicas", [("llama", True, ((0, 1, 2, 3),)), ("qwen2", False, SHARDED)]
)
def test_stages_together_are_the_model(here, tiny_model, reference, family, tied, replicas):
    directory = tiny_model(family, tied, **VLLM_HEADS)
    config = LIMITS.model_copy(update={"pipeline_parallel": 2, "max_num_seqs": 3})
    rollout = loaded_rollout(here, directory, replicas, config)
    sampled = None
    if rollout is not None:
        with closing(rollout):
            sampled = generated(rollout, PROMPTS, Sampling(max_tokens=12), SEEDS)
            for prompt, response in zip(PROMPTS, sampled, strict=True):
                check_log_probs(reference(directory).model, prompt, response, 1.0)
            whole = generated(rollout, PROMPTS, GREEDY, SEEDS)
            steps = iter(range(1000))
            part = generated(rollout, PROMPTS, GREEDY, SEEDS, until=lambda _: next(steps) == 6)
            begun = [r if r.finish_reason == "unfinished" else None for r in part]
            assert any(begun)
            again = generated(rollout, PROMPTS, GREEDY, SEEDS, prefixes=begun)
            assert [r.tokens for r in again] == [w.tokens for w in whole]
            sampled += part
    everyone = [one for one in here.control.allgather(sampled) if one is not None]
    assert everyone == [everyone[0]] * sum(map(len, replicas))


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
    with pytest.raises(LayoutError, match="pipeline_parallel = 3 does not divide .* 2 layers"):
        build(here, directory, ((1, 2, 3),), pipeline_parallel=3)
    with pytest.raises(ConfigError, match=r"rollout.tensor_parallel = 2 with rollout.engine = hf"):
        build(here, directory, SHARDED, engine="hf")
