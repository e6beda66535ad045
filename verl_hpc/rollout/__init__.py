"""Generating engines with a common protocol; tutorials import these names from here."""

from verl_hpc.tutorial_names import MODULES, lazy_names

_NAMES = ("RolloutManager", "VLLMActorModel", "vLLMActor")

__getattr__, __dir__ = lazy_names(__name__, {name: MODULES[name] for name in _NAMES})
