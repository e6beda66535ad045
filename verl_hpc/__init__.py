"""verl_hpc: LLM reinforcement-learning post-training as one MPI program under Slurm.

Importing the package costs no torch, numpy or MPI: the names that tutorials of verl teach
(docs/python_api.md) are imported when they are first used.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_API = {
    "ActorModel": "models",
    "CriticModel": "models",
    "DataFlow": "flow",
    "DataProvider": "data",
    "DatabaseSource": "sources",
    "DeviceMesh": "mesh",
    "DynamicBatchSampler": "batching",
    "DynamicTaskWeightScheduler": "tasks.scheduler",
    "HfModelAdapter": "models",
    "MessageSource": "sources",
    "Operator": "flow",
    "PPORoleUpdater": "updater",
    "PPOTrainer": "trainer",
    "PromptSource": "sources",
    "QueueSource": "sources",
    "ReplayBuffer": "nodes",
    "RewardNode": "nodes",
    "RolloutManager": "manager",
    "RolloutNode": "nodes",
    "SafetyGuard": "tasks.guard",
    "Trainer": "tasks.trainer",
    "UpdateNode": "nodes",
    "VLLMActorModel": "vllm",
    "get_actor_critic": "loading",
    "get_dataloader": "dataloader",
    "register_reward": "rewards",
    "vLLMActor": "vllm",
    "vLLMAdapter": "vllm",
}
"""Public names by the module of `verl_hpc.api` that has them."""


def __getattr__(name: str) -> Any:
    if name not in _API:
        raise AttributeError(f"module 'verl_hpc' has no attribute {name!r}")
    value = getattr(import_module(f"verl_hpc.api.{_API[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({"__version__", *_API})
