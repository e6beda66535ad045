"""changed: tasks.yaml has its tasks below tasks: of a run, with our recipes and rewards."""

from pathlib import Path

from verl_hpc.config.load import load_config

Path("tasks.yaml").write_text("""\
name: multi
recipe: rl
steps: 3
data: {train: {kind: files, paths: [data/preference.jsonl]}}
model: {path: tiny}
reward: {function: exact_match}
rollout: {num_samples: 2}
algorithm: {advantage: {name: grpo}}
tasks:
  preference_alignment:
    weight: 0.5
  code_generation:
    weight: 0.3
    train: {kind: files, paths: [data/code.jsonl]}
    reward: {function: code}
  fact_checking:
    weight: 0.2
    recipe: sft
    train: {kind: files, paths: [data/facts.jsonl], answer_key: answer}
""")

# What it shows.
config = load_config("tasks.yaml")
assert [task.weight for task in config.tasks.values()] == [0.5, 0.3, 0.2]
assert config.tasks["fact_checking"].recipe == "sft"
