"""works: the three switches, each of which is off by default."""

from pathlib import Path

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import PPOTrainer

model, tokenizer = AutoModelForCausalLM.from_pretrained("tiny"), AutoTokenizer.from_pretrained("tiny")
trainer = PPOTrainer(
    model,
    None,
    tokenizer,
    config={
        "enable_profiling": False,
        "enable_debug_mode": False,
        "allow_unsafe_operations": False,
    },
)

# What it shows.
on = dict.fromkeys(("enable_profiling", "enable_debug_mode", "allow_unsafe_operations"), True)
small = {"max_response_length": 2, "output_dir": "profiled"}
other = PPOTrainer(model, None, tokenizer, on | small)
other.step(["hi"])
assert "advantages" in other.debug_values and len(list(Path("profiled").rglob("step_1.json"))) == 1
assert PPOTrainer(model, None, tokenizer).config == trainer.config
