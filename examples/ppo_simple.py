"""PPO in one process, by the names of verl's tutorials: a tiny model learns to write vowels.

    python examples/ppo_simple.py
    python examples/ppo_simple.py --num_rollout_workers 2 --actor_model gpt2 --critic_model gpt2

Without names it makes its model in runs/ppo_simple and takes seconds on a CPU. It prints the mean
reward of every step: the share of vowels in responses of six letters, hardly anything at first. A
safety reward of the user's stands beside it as a node of its own. A model by name is a directory,
or one that `python -m verl_hpc fetch ORG/NAME` has brought.
"""

import argparse
import sys
from collections.abc import Sequence
from typing import Any

import verl_hpc
from verl_hpc.api.batch import Batch
from verl_hpc.errors import VerlHpcError
from verl_hpc.testing.tiny import make_tiny_model

PROMPTS = ["abc", "xy z"] * 8
SIZES: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}


def share_of_vowels(sampled_response: str, reference_answer: str | None) -> float:
    """1 where all six letters are vowels."""
    del reference_answer
    return sum(letter in "aeiou" for letter in sampled_response) / 6


class SafetyRewardNode(verl_hpc.RewardNode):  # type: ignore[misc]
    """Takes a point off a response with an x."""

    def score(self, batch: Batch) -> Sequence[float]:
        return [-1.0 if "x" in rollout.response else 0.0 for rollout in batch]


def main(words: Sequence[str] | None = None) -> tuple[float, float]:
    """Train; the mean reward of the first step and of the last."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--actor_model", help="directory or ORG/NAME; a tiny one is made without")
    parser.add_argument("--critic_model", help="the actor's without")
    parser.add_argument(
        "--num_rollout_workers", type=int, default=1, help="parts that responses are generated in"
    )
    parser.add_argument("--steps", type=int, default=16)
    asked = parser.parse_args(words)
    path = asked.actor_model or str(make_tiny_model("runs/ppo_simple/model", "qwen2", **SIZES))
    actor, critic = verl_hpc.get_actor_critic(path)
    directory = critic.config._name_or_path
    if asked.critic_model not in (None, path):
        _, critic = verl_hpc.get_actor_critic(asked.critic_model)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(directory)
    config = {
        "lr": 4e-2,
        "critic_lr": 1e-2,
        "kl_coef": 0.01,
        "num_samples": 2,
        "max_response_length": 6,
        "rollout_per_device_batch_size": -(-2 * len(PROMPTS) // asked.num_rollout_workers),
    }
    trainer = verl_hpc.PPOTrainer(actor, critic, tokenizer, config, namespace="example")
    flow = verl_hpc.DataFlow("step")
    flow.add_operator(verl_hpc.RolloutNode(trainer))
    flow.add_operator(verl_hpc.RewardNode(share_of_vowels))
    flow.add_operator(SafetyRewardNode(weight=0.5))
    flow.add_operator(verl_hpc.UpdateNode(trainer))
    pipeline = flow.compile()
    means = []
    for step in range(1, asked.steps + 1):
        values = pipeline.run(prompts=PROMPTS)
        rewards = values["rewardnode"]
        means.append(sum(rewards) / len(rewards))
        kl = values["metrics"]["actor/reward_kl_penalty"]
        print(f"step {step:3}  reward {means[-1]:.3f}  kl {kl:.3f}")
    return means[0], means[-1]


if __name__ == "__main__":
    try:
        main()
    except VerlHpcError as error:
        sys.exit(f"{type(error).__name__}: {error}")
