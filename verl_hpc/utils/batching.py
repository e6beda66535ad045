"""Tutorials of verl import batches for torch's DataLoader from here."""

from verl_hpc.tutorial_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, "DynamicBatchSampler")
