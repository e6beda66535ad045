"""works, slow: the tutorial's YAML file trains on two ranks; lengths and steps are smaller."""

import subprocess
import sys
from pathlib import Path

Path("ppo_config.yaml").write_text("""\
algorithm:
  name: ppo
  clip_range: 0.2
  value_loss_coef: 0.1
model:
  pretrain_model_path: "wide"
reward_function: "accuracy_reward"
data:
  train_path: "data/gsm8k_train.jsonl"
  batch_size_per_gpu: 4
engine:
  actor_type: "vllm"
  critic_type: "fsdp"
  num_gpus: 2
""")
command = [sys.executable, "-m", "verl_hpc.cli.train", "--config", "ppo_config.yaml"]
sizes = ["max_prompt_length=64", "max_response_length=8", "steps=2", "output_dir=trained"]
done = subprocess.run([*command, *sizes], capture_output=True, text=True)

# What it shows.
assert done.returncode == 0, done.stdout + done.stderr
assert "value_loss_coef" in done.stdout + done.stderr
assert Path("trained/checkpoints/latest/manifest.json").is_file()
assert len(Path("trained/metrics.jsonl").read_text().splitlines()) >= 2
