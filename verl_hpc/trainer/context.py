"""One rank's view of a run, for recipes and the loop."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from verl_hpc.trainer.run_parts import RunParts
from verl_hpc.trainer.settings import Settings


@dataclass
class RunContext(RunParts):
    """The parts of a run, with its configuration as operators' settings."""

    @cached_property
    def settings(self) -> Settings:
        """Operators' settings, from the configuration."""
        return Settings(self)
