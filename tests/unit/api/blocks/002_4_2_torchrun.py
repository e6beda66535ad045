"""refused: a trainer in each of several ranks of torchrun; a run has several ranks."""
# says: one of 2 ranks.*verl_hpc train --ranks 2

import os

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer

os.environ["WORLD_SIZE"] = "2"  # as torchrun --nproc_per_node=2 ppo_train.py --use_fsdp sets it
model = AutoModelForCausalLM.from_pretrained("tiny")
trainer = PPOTrainer(model, None, AutoTokenizer.from_pretrained("tiny"))
