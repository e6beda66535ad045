"""works, slow: vLLM by the name of a model."""

from transformers import AutoTokenizer

from verl_hpc import VLLMActorModel

actor_model = VLLMActorModel(model_name="wide", tensor_parallel_size=1, max_num_seqs=256)

# What it shows.
input_ids = AutoTokenizer.from_pretrained("wide").encode("hello", return_tensors="pt")
assert actor_model.generate(input_ids, max_new_tokens=4).shape[1] > input_ids.shape[1]
actor_model.llm_engine.llm_engine.engine_core.shutdown()
