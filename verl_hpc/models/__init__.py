"""Tutorials of verl import models from here; they are those of `verl_hpc`."""

from verl_hpc.tutorial_names import lazy_names

__getattr__, __dir__ = lazy_names(
    __name__, "ActorModel", "CriticModel", "HfModelAdapter", "VLLMActorModel", "get_actor_critic"
)
