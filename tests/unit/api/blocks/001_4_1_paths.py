"""changed: what verl has as scripts is a command here, which docs/python_api.md names for each."""

import re
from pathlib import Path

import verl_hpc
from verl_hpc.migration.translate import load_run, migrate

root = Path(verl_hpc.__file__).parents[1]
page = (root / "docs/python_api.md").read_text()
rows = dict(re.findall(r"^\| `((?:examples|recipe)/\S+)` \| `(.+?)`", page, re.M))

# What it shows.
trainers = {f"examples/{name}_trainer/" for name in ("ppo", "grpo", "remax", "rloo")}
assert trainers | {f"recipe/{name}/" for name in ("dapo", "prime", "drgrpo")} < rows.keys()
for path, command in rows.items():
    program, _, words = command.partition(" ")[2].partition(" ")
    assert program == "-m" or (root / program).is_file(), path
    module, *words = words.split()
    if "--config" in words:
        config, *settings = words[words.index("--config") + 1 :]
        load_run(root / config, settings)
    elif module == "verl_hpc.trainer.main_ppo":
        data = ["data.train_files=a.parquet", "actor_rollout_ref.model.path=m"]
        migrate([*data, "actor_rollout_ref.rollout.name=vllm", *words]).config()
