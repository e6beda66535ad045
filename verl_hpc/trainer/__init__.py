"""A training run: recipes and the loop over steps; tutorials import these names from here."""

from verl_hpc.tutorial_names import lazy_names

__getattr__, __dir__ = lazy_names(__name__, "PPOTrainer")
