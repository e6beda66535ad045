"""One rank's view of a run, for recipes and the loop."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from verl_hpc.trainer.run_parts import RunParts
from verl_hpc.trainer.settings import Settings


@dataclass
class RunContext(RunParts):
    """The parts of a run, with its configuration as operators' settings."""

    tasks: Mapping[str, RunContext] = field(default_factory=dict)
    """The run as each of several tasks sees it (`trainer.tasks`)."""

    @cached_property
    def settings(self) -> Settings:
        """Operators' settings, from the configuration."""
        return Settings(self)
