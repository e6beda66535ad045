"""Tutorials of verl import models from here; they are those of `verl_hpc`."""

from verl_hpc.tutorial_names import MODULES, lazy_names

_NAMES = ("ActorModel", "CriticModel", "HfModelAdapter", "VLLMActorModel", "get_actor_critic")

__getattr__, __dir__ = lazy_names(__name__, {name: MODULES[name] for name in _NAMES})
