"""Multi-latent attention, layers of two kinds and a router's bias in vLLM, from files by the shard
map: its parameters are those of the map, and it computes what transformers does."""

import json
from contextlib import closing

import pytest
import torch
from transformers import AutoModelForCausalLM

from tests.generated import generated
from tests.mpi.any_models import LATENT, NO_AUX
from tests.mpi.engines_for_tests import load_rollout, loaded_rollout, some_sequences
from tests.slow import REASON
from verl_hpc.config.rollout import RolloutConfig
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.testing.tiny import make_tiny_model

pytestmark = pytest.mark.world(2)
LIMITS = {"max_prompt_tokens": 32, "max_response_tokens": 16, "kv_cache_gib": 0.03}
DIRECT = {
    "q_lora_rank": None,
    "n_shared_experts": 2,
    "first_k_dense_replace": 2,
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
}
"""As Moonlight has them: with plain rotary embeddings, too."""
STAGES = {"num_hidden_layers": 4, "first_k_dense_replace": 3}
CASES = {
    "tp2": ({}, {"tensor_parallel": 2}),
    "one": ({}, {}),
    "whole experts": ({}, {"tensor_parallel": 2, "expert_parallel": True}),
    "direct queries": (DIRECT, {"tensor_parallel": 2}),
    "stages": (STAGES, {"pipeline_parallel": 2}),
    "kimi_k2": ({}, {"tensor_parallel": 2}),
}


def some_cases():
    slow = pytest.mark.slow(reason=REASON)
    return [pytest.param(name, marks=() if name == "tp2" else slow) for name in CASES]


@pytest.mark.parametrize("case", some_cases())
def test_what_arrives_computes_as_transformers(here, shared_directory, case):
    fields, sizes = CASES[case]
    config, size = RolloutConfig(**LIMITS, **sizes), here.world.size
    per_engine = config.tensor_parallel * config.pipeline_parallel
    replicas = tuple(tuple(range(r, r + per_engine)) for r in range(0, size, per_engine))
    directories = [shared_directory / f"latent-{case}-{seed}" for seed in (0, 1)]
    if here.world.rank == 0:
        for seed, directory in enumerate(directories):
            make_tiny_model(
                directory, "deepseek_v3", noise=0.05, seed=seed, **LATENT | NO_AUX | fields
            )
        if case == "kimi_k2":  # a family of its own in config.json alone
            file = directories[1] / "config.json"
            known = json.loads(file.read_text(encoding="utf-8"))
            file.write_text(json.dumps(known | {"model_type": case}), encoding="utf-8")
    here.control.barrier()
    prompts = [s[:20].tolist() for s in some_sequences(4, 256, seed=1)]
    with closing(loaded_rollout(here, directories[1], replicas, config)) as engine:
        load_rollout(here, engine, directories[0])  # over other weights, and what they gave
        responses = generated(engine, prompts, Sampling(max_tokens=12), seeds=range(4))
    model = AutoModelForCausalLM.from_pretrained(directories[0], dtype=torch.float32)
    for prompt, response in zip(prompts, responses, strict=True):
        tokens = torch.tensor(prompt + list(response.tokens))
        with torch.no_grad():
            of_all = model(tokens[None]).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
        wanted = of_all.gather(-1, tokens[len(prompt) :, None])[:, 0]
        torch.testing.assert_close(torch.tensor(response.log_probs), wanted, atol=1e-4, rtol=0)
