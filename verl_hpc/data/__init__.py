"""Data sets. Tutorials of verl import these names of `verl_hpc` from here."""

from verl_hpc.tutorial_names import MODULES, lazy_names

_NAMES = ("DataProvider", "get_dataloader")

__getattr__, __dir__ = lazy_names(__name__, {name: MODULES[name] for name in _NAMES})
