"""A training run: recipes and the loop over steps; tutorials import these names from here."""

from verl_hpc.tutorial_names import MODULES, lazy_names

_NAMES = ("PPOTrainer", "SafetyGuard", "Trainer")

__getattr__, __dir__ = lazy_names(__name__, {name: MODULES[name] for name in _NAMES})
