"""Numbers that a recipe's operators change from step to step, and that checkpoints hold."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.step.placement import Placement


@dataclass
class Number:
    """A number that operators of one placement change, alike on all its ranks."""

    value: float
    place: Placement
    """Elsewhere it is what it was when this process started."""
