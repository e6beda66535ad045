"""A run as one rank sees it: what recipes choose from, and what the loop works with."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from verl_hpc.trainer.run_parts import RunParts
from verl_hpc.trainer.settings import Settings


@dataclass
class RunContext(RunParts):
    """The parts of a run, and its configuration as settings of operators."""

    @cached_property
    def settings(self) -> Settings:
        """The configuration as operators take it."""
        return Settings(self)
