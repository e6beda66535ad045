"""works: the three switches, each of which is off by default."""

from pathlib import Path

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import ActorModel, PPOTrainer
from verl_hpc.errors import ConfigError

tokenizer = AutoTokenizer.from_pretrained("tiny")
model = AutoModelForCausalLM.from_pretrained("tiny")
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
brought = type("Brought", (ActorModel,), {"__module__": "transformers_modules.x"})(model)
with pytest.raises(ConfigError, match="Brought is code that came with a model"):
    PPOTrainer(brought, None, tokenizer)
PPOTrainer(brought, None, tokenizer, on | small).step(["hi"])
with pytest.raises(ConfigError, match="debug_values needs enable_debug_mode"):
    _ = trainer.debug_values
