"""From trained weights to generating weights, and who has the device in between."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager

import torch

from verl_hpc.config.model import OffloadConfig
from verl_hpc.engines.protocol import Part, TrainingEngine
from verl_hpc.layout.planner import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_ROUNDS,
    HOST_BUCKET_BYTES,
    HOST_ROUNDS,
    plan_transfer,
)
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.runtime import environment
from verl_hpc.runtime.session import Session
from verl_hpc.trainer.role import Role, Rollout
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.fp8 import Fp8Weights
from verl_hpc.transfer.process_memory import readable_neighbours

PARTS: tuple[Part, ...] = ("optimizer", "gradients", "parameters")

Offloads = Sequence[tuple[TrainingEngine, Sequence[Part]]]
"""Engines of this rank, and what of each goes to the host in every step, in that order."""


def offloads_of(roles: Iterable[Role]) -> Offloads:
    """Of roles that have an engine here."""
    return [
        (role.training, _chosen(role.settings.offload))
        for role in roles
        if role.training is not None
    ]


def _chosen(config: OffloadConfig) -> list[Part]:
    return [part for part in PARTS if getattr(config, part)]


@contextmanager
def device_to_itself(offloads: Offloads) -> Iterator[None]:
    """Inside, nothing of the training engines is on the device.

    For building a rollout engine, which asks for its share of the device to be free: it must sleep
    before the end.
    """
    for engine, often in offloads:
        for part in PARTS:
            engine.offload(part, once=part not in often)
    yield
    for engine, _ in offloads:
        for part in reversed(PARTS):
            engine.onload(part)


def _neighbours(session: Session, source: ShardMap, target: ShardMap) -> dict[int, int]:
    """Ranks whose memory is read in place of messages; every rank calls it."""
    if any(source.tensors[name].dtype != spec.dtype for name, spec in target.tensors.items()):
        return {}
    return readable_neighbours(session.control, session.world.node_of)


class WeightSync:
    """The resharding step, and the order in which memory changes hands around it.

    training -> (generation engine's weights) -> transfer -> (training memory to the host)
             -> (generation engine's cache) -> generation -> (engine asleep) -> training

    On ranks that only train, or only generate, nothing goes to the host.

    Args:
        session: of this rank.
        actor: whose weights generate.
        rollout: what generates.
        offloads: of all training engines of this rank.
        dtype: of the rollout's weights that are not quantised.
        checksums: compare what arrives with what was sent.
    """

    def __init__(
        self,
        session: Session,
        actor: Role,
        rollout: Rollout,
        offloads: Offloads,
        dtype: torch.dtype,
        checksums: bool,
    ) -> None:
        self._session, self._rollout = session, rollout
        self._sends = actor.training.weights if actor.training is not None else {}
        self._offloads = offloads if rollout.engine is not None else ()
        on_host = session.device.type == "cpu"
        target = rollout.shard_map
        source = quantised_source(actor.shard_map, target)
        self._fp8 = None
        if source is not actor.shard_map:
            self._fp8 = Fp8Weights(
                actor.shard_map, source, session.world.rank, dtype, session.device
            )
        self._dtypes = {name: getattr(torch, s.dtype) for name, s in target.tensors.items()}
        plan = plan_transfer(
            source,
            rollout.shard_map,
            session.world.node_of,
            HOST_BUCKET_BYTES if on_host else DEFAULT_BUCKET_BYTES,
        )
        self._transfer = Transfer(
            plan,
            session.world.rank,
            verify=checksums,
            nodes=session.control.allgather(environment.node_name()),
            rounds=HOST_ROUNDS if on_host else DEFAULT_ROUNDS,
            neighbours=_neighbours(session, source, target) if on_host else None,
        )
        self._minimum = sum(minimum_received(plan.bundles).values())

    def to_generation(self) -> dict[str, float]:
        """Bring the actor's weights into the rollout engines and make room for their cache; every
        rank calls it.

        Returns:
            Bytes received by all ranks, the least that was possible, and this rank's seconds.

        Raises:
            TransferError: a received message is not what was sent.
        """
        self.to_training()
        engine = self._rollout.engine
        if engine is not None:
            engine.begin_update()
        receives = engine.weights if engine is not None else {}
        sends = self._sends if self._fp8 is None else self._fp8.quantised(self._sends)
        stats = self._transfer.run(sends, receives, self._dtypes)
        if self._fp8 is not None:
            del sends
            self._transfer.forget()
        for training, parts in self._offloads:
            for part in parts:
                training.offload(part)
        if engine is not None:
            engine.finish_update()
        received = self._session.control.sum(stats.total_received_bytes)
        return {
            "reshard/received_bytes": float(received),
            "reshard/minimum_bytes": float(self._minimum),
            "reshard/seconds": stats.seconds,
        }

    def to_training(self) -> None:
        """Let the rollout engine sleep and bring back what was offloaded."""
        if self._rollout.engine is not None and self._offloads:
            self._rollout.engine.sleep()
        for training, parts in self._offloads:
            for part in reversed(parts):
                training.onload(part)
