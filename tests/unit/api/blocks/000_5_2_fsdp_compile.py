"""changed: torch.compile has backend="eager", for its own compiles anew for each length."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.fsdp import FullyShardedDataParallel as FSDP  # noqa: N817
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import ActorModel, PPOTrainer

store = f"file://{Path('store').absolute()}"
dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
tokenizer = AutoTokenizer.from_pretrained("tiny")
actor = ActorModel(AutoModelForCausalLM.from_pretrained("tiny"))
names = {name for name, _ in actor.model.named_parameters()}
actor.model = FSDP(actor.model, use_orig_params=True, device_id=torch.device("cpu"))
actor.model = torch.compile(actor.model, backend="eager")
trainer = PPOTrainer(actor, None, tokenizer, {"max_response_length": 3})
trainer.step(tokenizer.encode("hello", return_tensors="pt"))
path = trainer.save_checkpoint(path="ckpt", save_optimizer=False, save_training_state=False)

# What it shows.
from verl_hpc.checkpoint.read import Step  # noqa: E402

assert Step(path).components == ["actor"]
assert set(trainer._run.roles["actor"].shard_map.tensors) == names
