"""Run TRL's GRPOTrainer on the completions that ours sampled, and keep what it logs.

usage: python trl_grpo.py OUT
"""

import json
from collections import defaultdict

import torch
from trl_runs import OUT, SETTINGS, train  # first: it makes TRL's packages importable

from datasets import Dataset  # isort: skip
from transformers import AutoModelForCausalLM, AutoTokenizer  # isort: skip
from trl import GRPOConfig, GRPOTrainer  # isort: skip

STEPS, PROMPTS, SAMPLES, EPOCHS = 8, 8, 8, 2


def main():
    """Train, and write trl_grpo.json."""
    tokenizer = AutoTokenizer.from_pretrained(OUT / "model")
    lines = (OUT / "data/rl.jsonl").read_text().splitlines()[: STEPS * PROMPTS]
    rows = [json.loads(line) for line in lines]
    recorded = defaultdict(list)
    for line in (OUT / "samples.jsonl").read_text().splitlines():
        one = json.loads(line)
        recorded[one["prompt"]].append(one)
    left = {prompt: found[-SAMPLES:] for prompt, found in recorded.items()}

    def rollout(prompts, trainer):
        """Give each prompt its next recorded completion."""
        given = [left[prompt].pop(0) for prompt in prompts]
        return {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": [one["ids"] for one in given],
            "logprobs": None,
            "recorded": [one["reward"] for one in given],
        }

    def reward(completions, recorded, **_):
        """Return the rewards that ours gave."""
        return recorded

    trainer = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(OUT / "model", dtype=torch.float32),
        reward_funcs=reward,
        rollout_func=rollout,
        processing_class=tokenizer,
        train_dataset=Dataset.from_list([{"prompt": row["prompt"]} for row in rows]),
        args=GRPOConfig(
            max_steps=STEPS * EPOCHS,
            per_device_train_batch_size=PROMPTS * SAMPLES,
            num_iterations=EPOCHS,
            num_generations=SAMPLES,
            max_completion_length=8,
            loss_type="dapo",
            beta=0.04,
            use_bias_correction_kl=False,
            epsilon=0.2,
            shuffle_dataset=False,
            **SETTINGS,
        ),
    )
    train(trainer, "grpo")


main()
