"""works: the version, and the names that dir lists."""

import verl_hpc as verl

print("verl version:", verl.__version__)
modules = [m for m in dir(verl) if not m.startswith("_")]

# What it shows.
assert {"ActorModel", "CriticModel", "RolloutManager", "PPOTrainer", "DataProvider"} <= set(modules)
assert not {"ELSEWHERE", "TYPE_CHECKING", "annotations", "lazy_names", "VERSION"} & set(modules)
