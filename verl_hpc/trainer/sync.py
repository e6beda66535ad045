"""From trained weights to generating weights, and who has the device in between."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from verl_hpc.config.run import RunConfig
from verl_hpc.engines.protocol import Part, TrainingEngine
from verl_hpc.layout.planner import plan_transfer
from verl_hpc.layout.report import minimum_received
from verl_hpc.rollout.protocol import RolloutEngine
from verl_hpc.runtime import environment
from verl_hpc.runtime.session import Session
from verl_hpc.transfer.execute import Transfer

PARTS: tuple[Part, ...] = ("optimizer", "gradients", "parameters")


def offloaded(config: RunConfig) -> list[Part]:
    """What goes to the host in every step, in the order in which it goes."""
    return [part for part in PARTS if getattr(config.offload, part)]


@contextmanager
def device_to_itself(engines: Sequence[TrainingEngine], config: RunConfig) -> Iterator[None]:
    """Inside, nothing of the training engines is on the device.

    For building a rollout engine, which asks for its share of the device to be free: it must sleep
    before the end.
    """
    often = offloaded(config)
    for engine in engines:
        for part in PARTS:
            engine.offload(part, once=part not in often)
    yield
    for engine in engines:
        for part in reversed(PARTS):
            engine.onload(part)


class WeightSync:
    """The resharding step, and the order in which memory changes hands around it.

    training -> (generation engine's weights) -> transfer -> (training memory to the host)
             -> (generation engine's cache) -> generation -> (engine asleep) -> training
    """

    def __init__(
        self,
        session: Session,
        config: RunConfig,
        actor: TrainingEngine,
        critic: TrainingEngine | None,
        rollout: RolloutEngine,
    ) -> None:
        self._session = session
        self._actor, self._critic, self._rollout = actor, critic, rollout
        self._offloaded = offloaded(config)
        plan = plan_transfer(actor.shard_map, rollout.shard_map, session.world.node_of)
        self._transfer = Transfer(
            plan,
            session.world.rank,
            verify=config.rollout.verify.checksums,
            nodes=session.control.allgather(environment.node_name()),
        )
        self._minimum = sum(minimum_received(plan.bundles).values())

    def to_generation(self) -> dict[str, float]:
        """Bring the actor's weights into the rollout engine and make room for its cache.

        Returns:
            Bytes received by all ranks, the least that was possible, and this rank's seconds.

        Raises:
            TransferError: a received region is not what was sent.
        """
        self.to_training()
        self._rollout.begin_update()
        stats = self._transfer.run(self._actor.weights, self._rollout.weights, self._rollout.dtype)
        for engine in (self._actor, self._critic):
            if engine is not None:
                for part in self._offloaded:
                    engine.offload(part)
        self._rollout.finish_update()
        received = sum(self._session.control.allgather(stats.total_received_bytes))
        return {
            "reshard/received_bytes": float(received),
            "reshard/minimum_bytes": float(self._minimum),
            "reshard/seconds": stats.seconds,
        }

    def to_training(self) -> None:
        """Let the rollout engine sleep and bring back what was put away."""
        self._rollout.sleep()
        for engine in (self._actor, self._critic):
            if engine is not None:
                for part in reversed(self._offloaded):
                    engine.onload(part)
