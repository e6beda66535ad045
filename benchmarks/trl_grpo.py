"""The TRL side of `grpo_step_vs_trl`; runs in TRL's own environment, which lacks verl_hpc.

usage: python trl_grpo.py SPEC.json RESULT.json
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    TrainerCallback,
    TrainerControl,
    TrainerState,
    TrainingArguments,
)
from trl import GRPOConfig, GRPOTrainer


class StepClock(TrainerCallback):
    """When each step ended, everything between two of them counted: data, sampling, update."""

    def __init__(self) -> None:
        self.ends: list[float] = []

    def on_step_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **_: Any
    ) -> None:
        del args, state, control
        self.ends.append(time.time())


def main() -> None:
    spec = json.loads(Path(sys.argv[1]).read_text())
    model = AutoModelForCausalLM.from_pretrained(spec["model"], dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(spec["model"])
    clock = StepClock()
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=_reward(spec["reward"]),
        args=_settings(spec),
        train_dataset=Dataset.from_list([{"prompt": text} for text in spec["prompts"]]),
        processing_class=tokenizer,
        callbacks=[clock],
    )
    trainer.train()
    if int(os.environ.get("RANK", "0")) == 0:
        logs = [row for row in trainer.state.log_history if "completions/min_length" in row]
        result = {
            "ends": clock.ends,
            "shortest": min(row["completions/min_length"] for row in logs),
            "longest": max(row["completions/max_length"] for row in logs),
            "lengths": [row["completions/mean_length"] for row in logs],
            "processes": int(os.environ.get("WORLD_SIZE", "1")),
            "threads": torch.get_num_threads(),
        }
        Path(sys.argv[2]).write_text(json.dumps(result))


def _settings(spec: dict[str, Any]) -> GRPOConfig:
    samples = spec["prompts_per_step"] * spec["samples_per_prompt"]
    return GRPOConfig(
        output_dir=spec["scratch"],
        use_cpu=True,
        bf16=False,
        max_steps=spec["steps"],
        per_device_train_batch_size=samples // int(os.environ.get("WORLD_SIZE", "1")),
        gradient_accumulation_steps=1,
        num_iterations=1,
        num_generations=spec["samples_per_prompt"],
        max_completion_length=spec["response_tokens"],
        temperature=1.0,
        beta=0.0,
        learning_rate=spec["lr"],
        lr_scheduler_type="constant",
        weight_decay=0.0,
        max_grad_norm=1.0,
        # Recomputing activations saves memory that this model does not need.
        gradient_checkpointing=False,
        shuffle_dataset=False,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        seed=0,
    )


def _reward(path: str) -> Any:
    spec = importlib.util.spec_from_file_location("distinct_reward", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.scores


if __name__ == "__main__":
    main()
