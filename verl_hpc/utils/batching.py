"""Tutorials of verl import batches for torch's DataLoader from here."""

from verl_hpc.tutorial_names import MODULES, lazy_names

_NAMES = ("DynamicBatchSampler",)

__getattr__, __dir__ = lazy_names(__name__, {name: MODULES[name] for name in _NAMES})
