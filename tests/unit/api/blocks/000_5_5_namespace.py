"""changed: a trainer needs a model and a tokenizer beside its namespace."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer

tokenizer = AutoTokenizer.from_pretrained("tiny")
model = AutoModelForCausalLM.from_pretrained("tiny")
trainer_a = PPOTrainer(model, None, tokenizer, {"max_response_length": 2}, namespace="search-rl")
trainer_b = PPOTrainer(model, None, tokenizer, {"max_response_length": 2}, namespace="rec-rl")

# What it shows.
told = {}
trainer_a.add_metrics_exporter(lambda step, metrics: told.update(metrics))
trainer_a.step(["hi"])
for trainer in (trainer_a, trainer_b):
    trainer.save_checkpoint("spaces")
assert "search-rl/loss" in told
assert Path("spaces/search-rl/step_1").is_dir() and Path("spaces/rec-rl").is_dir()
