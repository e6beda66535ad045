"""Helpers, where verl's tutorials import them from."""

from verl_hpc.tutorial_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__)
