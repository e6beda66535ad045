"""Three tasks that train one actor: PPO, reward-conditioned learning, constrained decoding.

python examples/multi_task.py [STEPS]

It makes its model and its rows in this directory, takes less than a minute on a CPU, and prints the
reward of each task every five steps: the share of vowels, that of letters, and how often an emu is
picked of three animals. examples/multi_task.yaml has the tasks, docs/multi_task.md says what they
mean.
"""

import json
import sys
from pathlib import Path
from string import ascii_letters
from typing import Any

import verl_hpc
from verl_hpc.testing.tiny import make_tiny_model

SIZES: dict[str, Any] = {
    "num_hidden_layers": 1,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
}
PROMPTS = {"vowels": ["vvvvvv", "wwwwww"], "letters": ["SSSSSS", "TTTTTT"], "pick": ["pick: "]}


def share_of_vowels(response: str, reference: str | None) -> float:
    """1 where all six characters are vowels."""
    del reference
    return sum(letter in "aeiou" for letter in response) / 6


def share_of_letters(response: str, reference: str | None) -> float:
    """1 where all six characters are letters."""
    del reference
    return sum(letter in ascii_letters for letter in response) / 6


def likes_emus(response: str, reference: str | None) -> float:
    """1 for an emu."""
    del reference
    return float(response == "emu")


REWARDS = {"vowels": share_of_vowels, "letters": share_of_letters, "pick": likes_emus}


def main(steps: int = 40) -> list[dict[str, float]]:
    """Train; the metrics of every step."""
    path = str(make_tiny_model("tiny-model", "qwen2", noise=0.1, **SIZES))
    rows = Path("rows")
    rows.mkdir(exist_ok=True)
    for name, prompts in PROMPTS.items():
        lines = [json.dumps({"prompt": prompt}) for prompt in prompts]
        (rows / f"{name}.jsonl").write_text("\n".join(lines) + "\n")
    actor = verl_hpc.HfModelAdapter(path)
    loader = verl_hpc.get_dataloader(rows, {"vowels": 1, "letters": 2, "pick": 1}, batch_size=16)
    config = Path(__file__).with_suffix(".yaml")
    trainer = verl_hpc.Trainer(actor, None, loader, config, rewards=REWARDS)
    trainer.set_task_scheduler(
        verl_hpc.DynamicTaskWeightScheduler(
            {"vowels": 1, "letters": 2, "pick": 1}, metric_key="reward", patience=4, min_weight=0.2
        )
    )
    reports = []
    while trainer.global_step < steps:
        reports += trainer.train(1)
        if trainer.global_step % 5 == 0:
            rewards = {n: reports[-1].get(f"task/{n}/reward", float("nan")) for n in PROMPTS}
            shares = trainer.task_weights or {}
            text = "  ".join(f"{n} {r:.2f} ({shares[n]:.0%})" for n, r in rewards.items())
            print(f"step {trainer.global_step:3d}  {text}")
    return reports


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
