"""changed: a setting of a run, which reshards between training and generation in every step."""

from verl_hpc.config.load import parse_config
from verl_hpc.placement.layouts import place_roles

tree = {
    "name": "hybrid",
    "recipe": "rl",
    "steps": 1,
    "model": {"path": "tiny"},
    "parallel": {"tensor_parallel": 4},
    "rollout": {"tensor_parallel": 2, "grouping": "zero_redundancy", "num_samples": 2},
    "data": {"train": {"kind": "files", "paths": ["data/gsm8k_train.jsonl"]}},
    "reward": {"function": "exact_match"},
}
config = parse_config(tree, "hybrid")

# What it shows.
layouts = place_roles(config, 4)
pools = [layouts.pools[layouts.pool_of[role]] for role in ("actor", "rollout")]
assert [list(pool.ranks) for pool in pools] == [[0, 1, 2, 3]] * 2
assert (config.parallel.tensor_parallel, config.rollout.tensor_parallel) == (4, 2)
