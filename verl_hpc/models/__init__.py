"""Where verl's tutorials import models from; they are those of `verl_hpc`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_hpc.lazy_names import lazy_names

_NAMES = ("ActorModel", "CriticModel", "HfModelAdapter", "VLLMActorModel", "get_actor_critic")

if TYPE_CHECKING:
    from verl_hpc import ActorModel as ActorModel
    from verl_hpc import CriticModel as CriticModel
    from verl_hpc import HfModelAdapter as HfModelAdapter
    from verl_hpc import VLLMActorModel as VLLMActorModel
    from verl_hpc import get_actor_critic as get_actor_critic
else:
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_NAMES, "verl_hpc"))
