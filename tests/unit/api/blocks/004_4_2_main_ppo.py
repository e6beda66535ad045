"""works, slow: verl's command line, with fewer ranks, tokens and rows."""

import json
import shlex
import subprocess
import sys
from pathlib import Path

rows = [{"prompt": f"{i} + 1 =", "answer": str(i + 1)} for i in range(16)]
Path("sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
Path("eights.jsonl").write_text("\n".join(map(json.dumps, rows[:4])).replace("+", "plus"))
words = """
    data.train_files=sums.jsonl data.val_files=eights.jsonl data.train_batch_size=16
    data.max_prompt_length=64 data.max_response_length=8
    actor_rollout_ref.model.path=wide actor_rollout_ref.actor.optim.lr=1e-6
    actor_rollout_ref.actor.ppo_mini_batch_size=8
    actor_rollout_ref.rollout.name=vllm actor_rollout_ref.rollout.gpu_memory_utilization=0.9
    critic.model.path=wide critic.optim.lr=1e-5 critic.ppo_mini_batch_size=8
    trainer.nnodes=1 trainer.n_gpus_per_node=2 trainer.total_epochs=1
    trainer.project_name=verl_example trainer.experiment_name=qwen2_7b_gsm8k
    trainer.logger=[console] trainer.default_local_dir=verl_run
    verl_hpc.reward.function=exact_match
"""
command = [sys.executable, "-m", "verl_hpc.trainer.main_ppo", *shlex.split(words)]
done = subprocess.run(command, capture_output=True, text=True)

# What it shows.
assert done.returncode == 0, done.stdout + done.stderr
assert Path("verl_run/checkpoints/latest/manifest.json").is_file()
