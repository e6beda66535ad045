"""vLLM behind the actor's contract: a real engine, and coroutines around any actor."""

import asyncio
import sys

import pytest
import torch
from transformers import AutoModelForCausalLM

import verl_hpc
from verl_hpc.errors import ConfigError, DataError
from verl_hpc.testing.tiny import make_tiny_model


def test_an_adapter_answers_coroutines_one_after_the_other(hf_model):
    actor = verl_hpc.ActorModel(hf_model)
    adapter, ids = verl_hpc.vLLMAdapter(actor), torch.tensor([[5, 6]])

    async def ask():
        asked = (adapter.generate_async(ids, max_new_tokens=3, do_sample=False) for _ in range(3))
        return await asyncio.gather(*asked)

    expected = actor.generate(ids, max_new_tokens=3, do_sample=False)
    assert all(torch.equal(found, expected) for found in asyncio.run(ask()))


# As little of vLLM as starts: its attention on CPUs takes heads of at least 32.
SIZES = {"num_hidden_layers": 1, "num_attention_heads": 2, "num_key_value_heads": 2}
OPTIONS = {"max_model_len": 64, "enforce_eager": True, "kv_cache_memory_bytes": 2**26}


@pytest.fixture(scope="module")
def small_dir(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("small"), "qwen2", **SIZES)


class VllmAlone:
    """vLLM looks for its kernels in all modules, of which Flask's must not be looked at."""

    @property
    def modules(self):
        return {name: module for name, module in sys.modules.items() if name.startswith("vllm")}


@pytest.fixture(scope="module")
def actor(small_dir):
    """In this process: others, also one that is asked about the model, would import vLLM anew."""
    from vllm.triton_utils import dispatcher

    from verl_hpc.rollout.vllm import import_model

    import_model("qwen2")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dispatcher, "sys", VllmAlone())
        patch.setenv("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        made = verl_hpc.VLLMActorModel(str(small_dir), 1, 4, dtype="float32", **OPTIONS)
    yield made
    made.llm_engine.llm_engine.engine_core.shutdown()


def test_a_real_engine_answers_as_the_model_does(small_dir, actor, tokenizer):
    hf_model = AutoModelForCausalLM.from_pretrained(small_dir)
    ids = torch.tensor([[5, 6, 7]])
    responses = actor.generate(ids, max_new_tokens=4, do_sample=False)
    assert torch.equal(responses, hf_model.generate(ids, max_new_tokens=4, do_sample=False))
    again = verl_hpc.vLLMActor(actor.llm_engine)
    # The other prompt is padded on its left.
    both = again.generate([[5, 6, 7], [9]], max_new_tokens=4, do_sample=False, pad_token_id=2)
    assert both[0, : responses.shape[1]].tolist() == responses[0].tolist()
    assert both[1, :3].tolist() == [2, 2, 9]
    with pytest.raises(ConfigError, match="vLLM computes no gradients"):
        verl_hpc.PPOTrainer(actor, None, tokenizer)


@pytest.mark.slow
def test_with_adapters_enabled_it_answers_as_before(small_dir, actor):
    """Another engine, whose start takes as long as that of the first."""
    options = OPTIONS | {"dtype": "float32", "enable_lora": True, "max_lora_rank": 8}
    other = verl_hpc.VLLMActorModel(str(small_dir), 1, 4, **options)
    try:
        assert other.llm_engine.llm_engine.vllm_config.lora_config.max_lora_rank == 8
        asked = {"max_new_tokens": 4, "do_sample": False}
        assert torch.equal(other.generate([[5, 6]], **asked), actor.generate([[5, 6]], **asked))
    finally:
        other.llm_engine.llm_engine.engine_core.shutdown()


def test_a_manager_asks_a_real_engine(actor, tokenizer):
    manager = verl_hpc.RolloutManager(actor, tokenizer, 2, max_response_length=4, seed=3)
    batch = manager.generate(["one"])
    assert len(batch) == 2 and all(len(r.log_probs) == len(r.response_ids) for r in batch)


def test_what_a_real_engine_refuses_leaves_it_as_it_was(actor):
    with pytest.raises(ConfigError, match="temperature = -1"):
        actor.generate([[5]], temperature=-1)
    with pytest.raises(DataError, match="prompt 1: vLLM refuses it: .*64"):
        actor.generate([[5], [6] * 70])
    with pytest.raises(DataError, match="prompt 0 has 1 tokens, and its mask 2"):
        actor.generate([[5]], [[1, 1]])
    expected = actor.generate([[5]], max_new_tokens=3, do_sample=False)
    assert torch.equal(actor.generate([[5]], max_new_tokens=3, do_sample=False), expected)


def test_an_actor_by_name_with_vllm_and_its_critic(small_dir, actor, monkeypatch):
    """The engine of this module stands in for a second start of vLLM."""
    asked = []

    def build(model, device, options):
        asked.append((model, options["dtype"]))
        return actor.llm_engine

    monkeypatch.setattr("verl_hpc.rollout.user_llm.build_llm", build)
    policy, critic = verl_hpc.get_actor_critic(small_dir, use_vllm=True, dtype={"critic": "bf16"})
    assert asked == [(str(small_dir), "float32")]
    assert isinstance(policy, verl_hpc.VLLMActorModel)
    assert policy.generate([[5]], max_new_tokens=2).shape == (1, 3)
    assert critic(torch.tensor([[5, 6]])).shape == (1, 2)
