"""Public names of the package that are imported when they are first used, and where each is.

Tutorials of verl import from `verl_hpc`, `verl_hpc.trainer`, `verl_hpc.data` and others. Each of
these packages calls `lazy_names` with the names that a tutorial takes from it. This module holds
where the names are as text, so that no room imports the rooms above it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

MODULES = {
    "ActorModel": "verl_hpc.api.models",
    "CriticModel": "verl_hpc.api.models",
    "DataFlow": "verl_hpc.api.flow",
    "DataProvider": "verl_hpc.api.data",
    "DeviceMesh": "verl_hpc.api.models",
    "DynamicBatchSampler": "verl_hpc.api.dataloader",
    "HfModelAdapter": "verl_hpc.api.loading",
    "Operator": "verl_hpc.api.flow",
    "PPORoleUpdater": "verl_hpc.api.updater",
    "PPOTrainer": "verl_hpc.api.trainer",
    "PromptSource": "verl_hpc.api.data",
    "ReplayBuffer": "verl_hpc.api.nodes",
    "RewardNode": "verl_hpc.api.nodes",
    "RolloutManager": "verl_hpc.api.manager",
    "RolloutNode": "verl_hpc.api.nodes",
    "UpdateNode": "verl_hpc.api.nodes",
    "VLLMActorModel": "verl_hpc.api.vllm",
    "get_actor_critic": "verl_hpc.api.loading",
    "get_dataloader": "verl_hpc.api.dataloader",
    "register_reward": "verl_hpc.api.rewards",
    "vLLMActor": "verl_hpc.api.vllm",
    "vLLMAdapter": "verl_hpc.api.vllm",
}
"""The module that has each public name."""

ELSEWHERE = {
    "MetricsExporter": "it is verl_hpc.metrics.MetricsExporter",
    "StreamingDataset": "DataProvider streams rows of files and URLs, and has a position",
    "RewardModel": "a reward is a function (reward_fn), or roles.reward of a run (docs/rewards.md)",
    "RolloutWorker": "it is RolloutManager",
    "strategy": "a trainer of one process has a device for each role (get_actor_critic has a "
    "device_map); ranks for each role are placement of a run, and how they divide a model is its "
    "parallel (docs/placements.md)",
    "collate_fn": "DynamicBatchSampler groups rows of like length, and DataCollatorWithPadding of "
    "transformers pads a batch",
    **dict.fromkeys(
        ("DynamicTaskWeightScheduler", "SafetyGuard", "Trainer"),
        "several tasks on one actor, their weights and guards are settings of a run, `tasks:`, "
        "`mix:` and `guards:` (docs/tasks.md)",
    ),
    **dict.fromkeys(
        ("memory_map", "mmap", "use_mmap"),
        "DataProvider reads row groups of Parquet and lines of JSONL as they are asked for, and "
        "holds no file whole; leave it out",
    ),
}
"""What serves instead of names of tutorials that this package does not have."""


def lazy_names(
    package: str, *names: str, **more: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return `__getattr__` and `__dir__` for the package with this `__name__` (PEP 562).

    Type checkers see the names as `Any`; those of the whole package are in `__init__.pyi`.

    Args:
        package: the package's name.
        names: names of `MODULES` that it has.
        more: the module that has each of its other names.
    """
    modules = {name: MODULES[name] for name in names} | more

    def get(name: str) -> Any:
        if name not in modules:
            hint = f": {ELSEWHERE[name]}" if name in ELSEWHERE else ""
            words = f"module {package!r} has no attribute {name!r}{hint}"
            # `from package import name` would drop an AttributeError's words.
            if hint and sys._getframe(1).f_code.co_name == "_handle_fromlist":
                raise ImportError(words)
            raise AttributeError(words)
        value = getattr(import_module(modules[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    def directory() -> list[str]:
        own = vars(sys.modules[package])
        rooms = (n for n, value in own.items() if hasattr(value, "__getattr__"))
        return sorted({*(n for n in own if n.startswith("_")), *rooms, *modules})

    return get, directory
