"""changed, slow: vLLM generates, and a trainer needs an ActorModel."""

import pytest
from transformers import AutoTokenizer
from vllm import LLM

from verl_hpc import PPOTrainer, vLLMActor

tokenizer = AutoTokenizer.from_pretrained("wide")
llm_engine = LLM(
    model="wide",
    tensor_parallel_size=1,
    enable_lora=True,
    max_model_len=128,
    kv_cache_memory_bytes=2**26,
)
actor = vLLMActor(llm_engine)

# What it shows.
input_ids = tokenizer.encode("hello", return_tensors="pt")
assert actor.generate(input_ids, max_new_tokens=4).shape[1] > input_ids.shape[1]
with pytest.raises(Exception, match="vLLM computes no gradients"):
    PPOTrainer(actor_model=actor, critic_model=None, tokenizer=tokenizer)
llm_engine.llm_engine.engine_core.shutdown()
