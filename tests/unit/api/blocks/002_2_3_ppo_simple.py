"""works: the example program with gpt2."""

import runpy
import sys
from pathlib import Path

import verl_hpc

root = Path(verl_hpc.__file__).parents[1]
words = "ppo_simple.py --num_rollout_workers 2 --actor_model gpt2 --critic_model gpt2"
sys.argv = words.split(" ")
main = runpy.run_path(str(root / "examples/ppo_simple.py"))["main"]
first, last = main()

# What it shows.
assert first < 0.2 < 0.4 < last
