"""vLLM engines of several pipeline stages, each stage on ranks of its own."""

import pytest
import torch

from tests.generated import generated
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.errors import LayoutError
from verl_hpc.layout.architecture import read_architecture
from verl_hpc.layout.live import check_parameters
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.rollout import rollout_shard_map
from verl_hpc.layout.safetensors import safetensors_shard_map
from verl_hpc.rollout.factory import build_rollout
from verl_hpc.rollout.protocol import Sampling, replica_of
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.files import SafetensorsReader

pytestmark = pytest.mark.world(4)
SIZES = {"hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2}
PROMPTS = [list(range(5, 5 + n)) for n in (3, 9, 4, 12)]
SEEDS, GREEDY = [1, 2, 3, 4], Sampling(max_tokens=14, temperature=0.0)


def limits(num_stages):
    return RolloutConfig(
        max_prompt_tokens=32,
        max_response_tokens=16,
        kv_cache_gib=0.03,
        max_num_seqs=3,
        pipeline_parallel=num_stages,
    )


def build(here, directory, replicas, num_stages):
    path, arch = str(directory), read_architecture(directory)
    config = limits(num_stages)
    engine = build_rollout(here.world, arch, path, path, replicas, config, "float32")
    target = rollout_shard_map(config, arch, replicas, "float32")
    plan = plan_transfer(safetensors_shard_map(directory), target, here.world.node_of)
    transfer = Transfer(plan, here.world.rank, SafetensorsReader())
    if engine is None:
        transfer.run({}, {}, torch.float32)
        return None
    check_parameters(target, here.world.rank, engine.weights, "vLLM")
    engine.begin_update()
    transfer.run({}, engine.weights, engine.dtype)
    engine.finish_update()
    return engine


@pytest.mark.parametrize(
    "family, tied, replicas, num_stages",
    [("llama", True, ((0, 1, 2, 3),), 2), ("qwen2", False, ((2, 3),), 2)],
)
def test_stages_together_are_the_model(
    here, tiny_model, reference, family, tied, replicas, num_stages
):
    directory = tiny_model(family, tied, num_hidden_layers=4, **SIZES)
    engine = build(here, directory, replicas, num_stages)
    index = replica_of(replicas, here.world.rank)
    if engine is None:
        assert index is None
        assert here.control.allgather(None).count(None) == 2
        return
    try:
        responses = generated(engine, PROMPTS, Sampling(max_tokens=14), SEEDS)
        for prompt, response in zip(PROMPTS, responses, strict=True):
            text = torch.tensor([*prompt, *response.tokens])
            with torch.no_grad():
                expected = reference(directory).log_probs(text)[len(prompt) - 1 :]
            sampled = torch.tensor(response.log_probs)
            torch.testing.assert_close(sampled, expected, atol=1e-5, rtol=0)
        whole = generated(engine, PROMPTS, GREEDY, SEEDS)
        steps = iter(range(1000))
        part = generated(engine, PROMPTS, GREEDY, SEEDS, until=lambda _: next(steps) == 6)
        begun = [r if r.finish_reason == "unfinished" else None for r in part]
        assert any(begun)
        again = generated(engine, PROMPTS, GREEDY, SEEDS, prefixes=begun)
        assert [r.tokens for r in again] == [w.tokens for w in whole]
    finally:
        engine.close()
    everyone = here.control.allgather((responses, part))
    assert all(sampled == (responses, part) for sampled in everyone if sampled is not None)


def test_layers_that_do_not_divide_are_refused_on_all_ranks(here, tiny_model):
    directory = tiny_model("qwen2", True, num_hidden_layers=4, **SIZES)
    with pytest.raises(LayoutError, match="pipeline_parallel = 3 does not divide .* 4 layers"):
        build(here, directory, ((1, 2, 3),), 3)
