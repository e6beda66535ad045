"""works: the settings of the tutorial, and those of its table."""

import os

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer

config = {
    "num_rollout_workers": min(1, os.cpu_count()),
    "rollout_per_device_batch_size": 4,
    "max_prompt_length": 512,
}
table = {"train_micro_batch_size_per_gpu": 2, "adam_eps": 1e-6, "value_loss_coef": 0.1}
small = {"max_response_length": 2}
tokenizer = AutoTokenizer.from_pretrained("tiny")
model = AutoModelForCausalLM.from_pretrained("tiny")
trainer = PPOTrainer(model, None, tokenizer, config | table | small)

# What it shows.
sizes = []
generate = model.generate
model.generate = lambda **asked: (sizes.append(len(asked["input_ids"])), generate(**asked))[1]
trainer.step(["one", "two", "three", "four", "five", "six"])
assert sizes == [4, 2]
assert trainer._run.config.optimizer.epsilon == 1e-6
assert trainer._run.roles["actor"].trained._max_tokens == 2 * (512 + 2)
