"""The run whose memory is planned: its roles' shapes, layouts and hardware."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.memory.rollout import RolloutShape
from verl_hpc.planner.shape import RoleShape


@dataclass(frozen=True)
class PlannedRun:
    """A run on some hardware, as far as its memory depends on it."""

    config: RunConfig
    layouts: RunLayouts
    hardware: Hardware
    shapes: Mapping[str, RoleShape]
    """Shape of each role, without those that compute in another's engine."""
    rollout: RolloutShape | None
    settings: Mapping[str, RoleSettings] = field(repr=False)
    peers_outside: int | None = None
    """Ranks of other nodes with which the busiest rank exchanges weights; None assumes a number."""

    @cached_property
    def engine_stages(self) -> dict[int, int]:
        """Pipeline stage of each rank that generates, in its rollout engine."""
        if self.rollout is None:
            return {}
        return {
            rank: place // self.rollout.tp
            for replica in self.layouts.replicas
            for place, rank in enumerate(replica)
        }
