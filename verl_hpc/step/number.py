"""Numbers that a recipe's operators update every step, and that checkpoints hold."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.step.placement import Placement


@dataclass
class Number:
    """A number that operators of one placement update, equally on all its ranks."""

    value: float
    place: Placement
    """The placement; on other ranks the number keeps its value from the start of the process."""
