"""works: actor and critic on ranks of their own."""

from pathlib import Path

from verl_hpc.migration.translate import load_run
from verl_hpc.placement.layouts import place_roles

Path("placed.yaml").write_text("""\
algorithm: {name: ppo, clip_range: 0.2}
model: {pretrain_model_path: "tiny"}
reward_function: exact_match
data: {train_path: "data/gsm8k_train.jsonl", batch_size_per_gpu: 4}
engine: {actor_type: "megatron", critic_type: "megatron", num_gpus: 8}
placement:
  actor_devices: [0, 1, 2, 3]
  critic_devices: [4, 5, 6, 7]
""")
run = load_run("placed.yaml")

# What it shows.
pools = place_roles(run.config(), run.ranks)
actor, critic = (pools.pools[pools.pool_of[role]].ranks for role in ("actor", "critic"))
assert (list(actor), list(critic)) == ([0, 1, 2, 3], [4, 5, 6, 7])
