"""works: rows of JSONL, and a reward of two arguments that is known by its name."""

import re

from transformers import AutoModelForCausalLM, AutoTokenizer

from verl_hpc import DataProvider, PPOTrainer, register_reward


def extract_number(text):
    numbers = re.findall(r"-?\d+\.?\d*", text)
    return float(numbers[-1]) if numbers else float("inf")


@register_reward
def number_reward(sampled_response, reference_answer):
    pred = extract_number(sampled_response)
    gold = extract_number(reference_answer)
    return 1.0 if abs(pred - gold) < 1e-3 else 0.0


# What it shows.
assert number_reward("so 42.", "The answer is 42.") == 1.0
trainer = PPOTrainer(
    AutoModelForCausalLM.from_pretrained("tiny"),
    None,
    AutoTokenizer.from_pretrained("tiny"),
    {"max_response_length": 2, "rollout_batch_size": 4},
    reward_fn="number_reward",
    data_provider=DataProvider("data/gsm8k_train.jsonl", "jsonl"),
)
assert 0 <= trainer.train(1)[0]["critic/score/mean"] <= 1
