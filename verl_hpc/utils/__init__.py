"""Helpers, where verl's tutorials import them from."""

from verl_hpc.tutorial_names import MODULES, lazy_names

_NAMES = ("DynamicTaskWeightScheduler",)

__getattr__, __dir__ = lazy_names(__name__, {name: MODULES[name] for name in _NAMES})
