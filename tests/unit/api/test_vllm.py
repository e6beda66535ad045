"""vLLM behind the actor's contract: a real engine, and coroutines around any actor."""

import asyncio
import math
import re

import pytest
import torch
from transformers import AutoModelForCausalLM

import verl_hpc
from verl_hpc.errors import ConfigError
from verl_hpc.rollout.protocol import Sampling
from verl_hpc.testing.tiny import make_tiny_model


def test_an_adapter_answers_coroutines_one_after_the_other(hf_model):
    actor = verl_hpc.ActorModel(hf_model)
    adapter, ids = verl_hpc.vLLMAdapter(actor), torch.tensor([[5, 6]])

    async def ask():
        asked = (adapter.generate_async(ids, max_new_tokens=3, do_sample=False) for _ in range(3))
        return await asyncio.gather(*asked)

    expected = actor.generate(ids, max_new_tokens=3, do_sample=False)
    assert all(torch.equal(found, expected) for found in asyncio.run(ask()))


def test_another_engine_is_refused():
    with pytest.raises(ConfigError, match="llm_engine is int; expected vllm.LLM"):
        verl_hpc.vLLMActor(3)


@pytest.mark.slow
def test_a_real_engine_answers_as_the_model_does(tmp_path, tokenizer):
    # vLLM's attention on CPUs takes heads of at least 32.
    sizes = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
    model_dir = make_tiny_model(tmp_path, "qwen2", **sizes)
    hf_model = AutoModelForCausalLM.from_pretrained(model_dir)
    options = {"max_model_len": 64, "enforce_eager": True, "kv_cache_memory_bytes": 2**26}
    actor = verl_hpc.VLLMActorModel(str(model_dir), 1, 4, dtype="float32", **options)
    ids = torch.tensor([[5, 6, 7]])
    found = actor.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(found, hf_model.generate(ids, max_new_tokens=4, do_sample=False))
    again = verl_hpc.vLLMActor(actor.llm_engine)
    assert torch.equal(again.generate(ids, max_new_tokens=4, do_sample=False), found)
    texts = {"do", "dog"}
    chosen = actor.generate([[5, 6]] * 8, max_new_tokens=6, choices=sorted(texts))
    assert {tokenizer.decode(row[2:], skip_special_tokens=True) for row in chosen} <= texts
    (restricted,) = actor.respond([[5, 6]], Sampling(6), [1], {"regex": "[0-9]{2}"})
    assert re.fullmatch("[0-9]{2}", tokenizer.decode(restricted.tokens, skip_special_tokens=True))
    # Of ten digits, about alike: not of the whole vocabulary.
    assert sum(restricted.log_probs[:2]) / 2 > math.log(1 / 30)
    with pytest.raises(ConfigError, match="choices and regex exclude"):
        actor.generate(ids, choices=["a"], regex="b")
    with pytest.raises(ConfigError, match="num_beams is not honoured"):
        actor.generate(ids, num_beams=4)
    with pytest.raises(ConfigError, match="vLLM computes no gradients"):
        verl_hpc.PPOTrainer(actor, None, tokenizer)
