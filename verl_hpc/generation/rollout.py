"""The role that generates: engines with the actor's weights, and what is under way in them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from verl_hpc.generation.prompt_queue import PromptQueue
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.partial import ResponseId, Tagged
from verl_hpc.rollout.protocol import RolloutEngine
from verl_hpc.runtime.control import Control
from verl_hpc.step.placement import Placement


@dataclass
class Rollout:
    """The engines that generate with the actor's weights."""

    place: Placement
    shard_map: ShardMap
    """Of all replicas."""
    engine: RolloutEngine | None
    """None on a rank that does not generate."""
    wants_to_leave: Callable[[], bool] = lambda: False
    """Whether this rank is preempted."""
    replica_control: Control | None = None
    """Of the ranks of this rank's engine."""
    allowed_bytes: int = 0
    """Of a row of `Response.allowed`; 0 where nothing restricts what is sampled."""
    queue: PromptQueue | None = None
    """Of rollout.balance: stealing."""
    version: int = 0
    """How many steps had changed the weights that the engines have."""
    ahead: Mapping[ResponseId, Tagged] = field(default_factory=dict)
    """Responses that this rank's engine has made ahead: all of the step that trains next, and those
    of later steps that it has begun."""

    @property
    def here(self) -> RolloutEngine:
        assert self.engine is not None, f"rank {self.place.rank} does not generate"
        return self.engine

    def preempted(self) -> bool:
        """Whether a rank of this engine is preempted; its ranks ask together."""
        mine = self.wants_to_leave()
        assert self.replica_control is not None
        return self.replica_control.any(mine) if self.replica_control.size > 1 else mine
