"""Where verl's tutorials import models from; they are those of `verl_hpc`."""

from __future__ import annotations

from typing import Any

_NAMES = ("ActorModel", "CriticModel", "HfModelAdapter", "VLLMActorModel", "get_actor_critic")


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        raise AttributeError(f"module 'verl_hpc.models' has no attribute {name!r}")
    import verl_hpc

    return getattr(verl_hpc, name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_NAMES})
