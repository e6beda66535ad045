"""The result of a search: roles on sets of ranks, with the layout of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from verl_hpc.planner.search.pareto_front import Option
from verl_hpc.planner.search.placements import Partition


@dataclass(frozen=True)
class Candidate:
    """The best layouts of one placement."""

    sets: Partition
    """Roles that share ranks; a reference that computes in another role's engine is with it."""
    sizes: tuple[int, ...]
    """Ranks of each set."""
    options: Mapping[str, Option]
    """Layout of each role that has an engine, and of ROLLOUT where it has its own ranks."""
    seconds: float
    """Seconds of a step."""
    operators: Mapping[str, float]
    """Seconds of each operator, `reshard` included."""

    @property
    def num_ranks(self) -> int:
        return sum(self.sizes)

    @property
    def gpu_hours(self) -> float:
        """GPU-hours of a step."""
        return self.num_ranks * self.seconds / 3600

    @property
    def rollout_tp(self) -> int | None:
        return next((o.rollout_tp for o in self.options.values() if o.rollout_tp), None)
