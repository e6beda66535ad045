"""The role that generates: engines with the actor's weights, and their responses in flight."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from verl_hpc.generation.kept import KeptResponses
from verl_hpc.generation.prompt_queue import PromptQueue
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.rollout.partial import ResponseId
from verl_hpc.rollout.protocol import Response, RolloutEngine
from verl_hpc.runtime.control import Control
from verl_hpc.step.placement import Placement


@dataclass
class Rollout:
    """The generating engines, and one rank's part of them."""

    place: Placement
    shard_map: ShardMap
    """Map of the weights of all replicas."""
    engine: RolloutEngine | None
    """This rank's engine; None if it does not generate."""
    wants_to_leave: Callable[[], bool] = lambda: False
    """Return whether this rank is preempted."""
    replica_control: Control | None = None
    """Control plane of the ranks of this rank's engine."""
    queue: PromptQueue | None = None
    """Prompt queue of rollout.balance: stealing."""
    kept: KeptResponses | None = None
    """Finished responses of an interrupted step; None without rollout.on_interrupt: keep."""
    version: int = 0
    """Number of steps that had changed the engines' weights."""
    ahead: Mapping[ResponseId, Response] = field(default_factory=dict)
    """Responses that this rank's engine has generated ahead: all of the next step to train, and
    those of later steps in flight."""
    live: Any = None
    """`LivePrograms` or `LiveConversations` of responses in flight, on each rank of the engine."""

    def forget(self) -> None:
        """Drop what was generated ahead, and end its programs and environments."""
        self.ahead = {}
        if self.live is not None:
            self.live.end_all()

    def preempted(self) -> bool:
        """Whether any rank of this engine is preempted; its ranks call this together."""
        mine = self.wants_to_leave()
        assert self.replica_control is not None
        return self.replica_control.any(mine) if self.replica_control.size > 1 else mine
