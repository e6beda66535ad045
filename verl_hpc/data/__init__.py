"""Data sets. Tutorials of verl import these names of `verl_hpc` from here."""

from verl_hpc.tutorial_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, "DataProvider", "get_dataloader")
