"""Recipes, their operators, and what drives a run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from verl_hpc.lazy_names import lazy_names

_NAMES = ("PPOTrainer", "Trainer")
"""Of the tutorials, which import them from here."""
if TYPE_CHECKING:
    from verl_hpc import PPOTrainer as PPOTrainer
    from verl_hpc import Trainer as Trainer
else:
    __getattr__, __dir__ = lazy_names(__name__, dict.fromkeys(_NAMES, "verl_hpc"))
