"""Send trained weights to the rollout engines, and hand the device's memory over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch

from verl_hpc.config.model import OffloadConfig
from verl_hpc.engines.protocol import Part, TrainingEngine
from verl_hpc.generation.rollout import Rollout
from verl_hpc.layout.planner import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_ROUNDS,
    HOST_BUCKET_BYTES,
    HOST_ROUNDS,
    plan_transfer,
)
from verl_hpc.layout.quantization import quantised_source, scale_name
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.shard_map import ShardMap, dtype_name
from verl_hpc.runtime import environment
from verl_hpc.runtime.session import Session
from verl_hpc.step.role import Role
from verl_hpc.trainer.merge import MergedWeights, parts_of
from verl_hpc.transfer.exchange import Buckets
from verl_hpc.transfer.execute import Transfer
from verl_hpc.transfer.fp8 import Fp8Weights
from verl_hpc.transfer.message import TransferStats
from verl_hpc.transfer.process_memory import readable_neighbours

PARTS: tuple[Part, ...] = ("optimizer", "gradients", "parameters")

Offloads = Sequence[tuple[TrainingEngine, Sequence[Part]]]
"""(engine, parts to offload every step, in order) of this rank."""


def offloads_of(roles: Iterable[Role]) -> Offloads:
    """Return the offloads of roles with an engine on this rank."""
    return [
        (role.training, _chosen(role.settings.offload))
        for role in roles
        if role.training is not None
    ]


def _chosen(config: OffloadConfig) -> list[Part]:
    return [part for part in PARTS if getattr(config, part)]


@contextmanager
def device_to_itself(offloads: Offloads) -> Iterator[None]:
    """Keep everything of the training engines off the device inside this context.

    Building a rollout engine needs its share of the device free; it must sleep before the context
    ends.
    """
    for engine, often in offloads:
        for part in PARTS:
            engine.offload(part, once=part not in often)
    yield
    for engine, _ in offloads:
        for part in reversed(PARTS):
            engine.onload(part)


def _neighbours(session: Session, parts: Iterable[tuple[ShardMap, ShardMap]]) -> dict[int, int]:
    """Return the ranks whose memory is read instead of receiving messages; every rank calls it."""
    if any(
        source.tensors[name].dtype != spec.dtype
        for source, target in parts
        for name, spec in target.tensors.items()
    ):
        return {}
    return readable_neighbours(session.control, session.world.node_of)


def _parts(actor: Role, rollout: Rollout, dtype: torch.dtype) -> list[tuple[ShardMap, ShardMap]]:
    """Return the (source, target) maps to send one after another: the whole model, or with adapters
    part by part."""
    source, target = actor.shard_map, rollout.shard_map
    if actor.settings.lora is None:
        return [(source, target)]
    parts = [
        [name for name in names if name in target.tensors]
        for names in parts_of(source, dtype_name(dtype))
    ]
    scales = [[scale for name in p if (scale := scale_name(name)) in target.tensors] for p in parts]
    return [
        (source.restricted_to(names), target.restricted_to([*names, *of_names]))
        for names, of_names in zip(parts, scales, strict=True)
        if names
    ]


class WeightSync:
    """Weight transfer to the rollout, and the order in which memory changes hands around it.

    training -> (generation engine's weights) -> transfer -> (training memory to the host)
             -> (generation engine's cache) -> generation -> (engine asleep) -> training

    Ranks that only train or only generate offload nothing.

    Args:
        session: this rank's session.
        actor: role whose weights generate.
        rollout: the generating role.
        offloads: offloads of all training engines of this rank.
        dtype: element type of the rollout's unquantised weights.
        checksums: compare received with sent weights.
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
        self._engine = actor.training
        self._offloads = offloads if rollout.engine is not None else ()
        on_host = session.device.type == "cpu"
        rank, nodes = session.world.rank, session.control.allgather(environment.node_name())
        maps = [
            (source, quantised_source(source, target), target)
            for source, target in _parts(actor, rollout, dtype)
        ]
        self._dtypes = {
            name: getattr(torch, spec.dtype) for name, spec in rollout.shard_map.tensors.items()
        }
        sent_parts = [(sent, target) for _, sent, target in maps]
        # CPU ranks of one node read each other's memory if no element type is converted.
        neighbours = _neighbours(session, sent_parts) if on_host else None
        buckets, self._minimum = Buckets(), 0
        self._transfers: list[Transfer] = []
        self._fp8: list[Fp8Weights | None] = []
        # One transfer per part; `sent` differs from `trained` where weights are quantised first.
        for trained, sent, target in maps:
            plan = plan_transfer(
                sent,
                target,
                session.world.node_of,
                HOST_BUCKET_BYTES if on_host else DEFAULT_BUCKET_BYTES,
            )
            self._minimum += sum(minimum_received(plan.bundles).values())
            self._transfers.append(
                Transfer(
                    plan,
                    rank,
                    verify=checksums,
                    nodes=nodes,
                    rounds=HOST_ROUNDS if on_host else DEFAULT_ROUNDS,
                    neighbours=neighbours,
                    buckets=buckets,
                )
            )
            self._fp8.append(
                None if sent is trained else Fp8Weights(trained, sent, rank, dtype, session.device)
            )
        self._merged: MergedWeights | None = None
        if actor.settings.lora is not None:
            self._merged = MergedWeights(self._engine, [m for m, *_ in maps], rank, dtype)

    def to_generation(self) -> dict[str, float]:
        """Send the actor's weights to the rollout engines and make room for their cache; every rank
        calls it.

        Returns:
            Bytes received by all ranks, the minimum possible, and this rank's seconds.

        Raises:
            TransferError: a received message differs from what was sent.
        """
        self.to_training()
        engine = self._rollout.engine
        if engine is not None:
            engine.begin_update()
        receives = engine.weights if engine is not None else {}
        received, seconds = 0, 0.0
        for number in range(len(self._transfers)):
            stats = self._send(number, receives)
            received += stats.total_received_bytes
            seconds += stats.seconds
        for training, parts in self._offloads:
            for part in parts:
                training.offload(part)
        if engine is not None:
            engine.finish_update()
        return {
            "reshard/received_bytes": float(sum(self._session.control.allgather(received))),
            "reshard/minimum_bytes": float(self._minimum),
            "reshard/seconds": seconds,
        }

    def _send(self, part: int, receives: Mapping[str, torch.Tensor]) -> TransferStats:
        transfer, fp8 = self._transfers[part], self._fp8[part]
        sends: Mapping[str, torch.Tensor] = {}
        if self._merged is not None:
            sends = self._merged.of(part)
        elif self._engine is not None:
            sends = self._engine.weights
        if fp8 is None:
            return transfer.run(sends, receives, self._dtypes)
        stats = transfer.run(fp8.quantised(sends), receives, self._dtypes)
        transfer.forget()  # or what was quantised would stay
        return stats

    def to_training(self) -> None:
        """Put the rollout engine to sleep and bring back offloaded parts."""
        if self._rollout.engine is not None and self._offloads:
            self._rollout.engine.sleep()
        for training, parts in self._offloads:
            for part in reversed(parts):
                training.onload(part)
