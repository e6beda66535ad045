"""Send trained weights to the rollout engines, and hand the device's memory over."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby

import torch

from verl_hpc.config.model import OffloadConfig
from verl_hpc.engines.factory import merged_weights
from verl_hpc.engines.protocol import Part, TrainingEngine
from verl_hpc.generation.rollout import Rollout
from verl_hpc.layout.adapters import factor_map, has_adapter, merged_source
from verl_hpc.layout.planner import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_ROUNDS,
    HOST_BUCKET_BYTES,
    HOST_ROUNDS,
    plan_transfer,
)
from verl_hpc.layout.quantization import quantised_source
from verl_hpc.layout.report import minimum_received
from verl_hpc.layout.rollout import in_parts
from verl_hpc.layout.shard_map import ShardMap
from verl_hpc.runtime import environment
from verl_hpc.runtime.session import Session
from verl_hpc.step.role import Role
from verl_hpc.trainer.arrival import MergedOnArrival
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


class _PlannedTransfer:
    """A planned transfer between two maps; every rank makes and runs it.

    Where the target has FP8 weights they are quantised before they travel.
    """

    def __init__(
        self,
        session: Session,
        nodes: Sequence[str],
        readable: Mapping[int, int],
        dtype: torch.dtype,
        checksums: bool,
        buckets: Buckets,
        source: ShardMap,
        target: ShardMap,
    ) -> None:
        world, on_host = session.world, session.device.type == "cpu"
        self.source, self.target, sent = source, target, quantised_source(source, target)
        plan = plan_transfer(
            sent, target, world.node_of, HOST_BUCKET_BYTES if on_host else DEFAULT_BUCKET_BYTES
        )
        alike = all(sent.tensors[name].dtype == s.dtype for name, s in target.tensors.items())
        self.minimum = sum(minimum_received(plan.bundles).values())
        """Bytes that all ranks need and do not hold."""
        self._transfer = Transfer(
            plan,
            world.rank,
            verify=checksums,
            nodes=nodes,
            rounds=HOST_ROUNDS if on_host else DEFAULT_ROUNDS,
            # Memory is read as it is: no element may change its type on the way.
            neighbours=readable if alike else None,
            buckets=buckets,
        )
        self._dtypes = {n: getattr(torch, spec.dtype) for n, spec in target.tensors.items()}
        self._fp8: Fp8Weights | None = None
        if sent is not source:
            self._fp8 = Fp8Weights(source, sent, world.rank, dtype, session.device)

    def new_memory(self, rank: int, device: torch.device) -> dict[str, torch.Tensor]:
        """Return memory for what a rank receives, by local name, where tensors arrive whole."""
        return {
            region.view.name: torch.empty(
                region.box.shape, dtype=self._dtypes[region.tensor], device=device
            )
            for region in self.target.held_by(rank)
        }

    def run(
        self, sends: Mapping[str, torch.Tensor], receives: Mapping[str, torch.Tensor]
    ) -> TransferStats:
        if self._fp8 is None:
            return self._transfer.run(sends, receives, self._dtypes)
        stats = self._transfer.run(self._fp8.quantised(sends), receives, self._dtypes)
        self.forget()  # or what was quantised would stay
        return stats

    def forget(self) -> None:
        """Drop references to the memory of the last run."""
        self._transfer.forget()


def _before_rounding(source: ShardMap, rollout: ShardMap, factors: ShardMap) -> Iterator[ShardMap]:
    """Maps of parameters with adapters that an engine has in another type than the trainer, in the
    trainer's type: what adapters are merged into must not be rounded before.

    They are those of one decoder layer each: until a rank has kept it, it is on the device besides.
    """
    regions = [
        region
        for region in rollout.regions
        if rollout.tensors[region.tensor].dtype
        != source.tensors.get(region.tensor, rollout.tensors[region.tensor]).dtype
    ]
    adapted = {r.view.name for r in regions if has_adapter(r.tensor, factors)}
    names = dict.fromkeys(r.tensor for r in regions if r.view.name in adapted)
    for _, layer in groupby(names, key=lambda name: name.split(".")[2]):
        part = rollout.restricted_to(layer)
        yield ShardMap({name: source.tensors[name] for name in part.tensors}, part.regions)


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
        self._engine, engine = actor.training, rollout.engine
        self._offloads = offloads if engine is not None else ()
        nodes = session.control.allgather(environment.node_name())
        readable: Mapping[int, int] = {}
        if session.device.type == "cpu":
            readable = readable_neighbours(session.control, session.world.node_of)
        planned = partial(_PlannedTransfer, session, nodes, readable, dtype, checksums)
        buckets = Buckets()
        source, target, lora = actor.shard_map, rollout.shard_map, actor.settings.lora
        self._merges = lora is not None and actor.settings.parallel.engine == "fsdp"
        if self._merges:
            source = merged_source(source, target, actor.trained_map)
        self._by_name = not actor.arch.is_mapped
        ways = [(source, target)]
        if self._by_name:
            ways = [(source.restricted_to(part.tensors), part) for part in in_parts(target)]
        self._weights = [planned(buckets, *way) for way in ways]
        """How weights are sent; nothing once all is sent that adapters leave as it is."""
        self._adapters: _PlannedTransfer | None = None
        self._arrival: MergedOnArrival | None = None
        if lora is None or self._merges:
            return
        factors = factor_map(rollout.shard_map, actor.trained_map)
        self._adapters = planned(Buckets(), actor.trained_map, factors)
        for target in _before_rounding(actor.shard_map, rollout.shard_map, factors):
            source = actor.shard_map.restricted_to(target.tensors)
            self._weights.append(planned(buckets, source, target))
        if engine is not None:
            loses = session.device.type == "cuda" and bool(offloads)
            self._arrival = MergedOnArrival(engine, factors, session.world.rank, lora, loses)

    def to_generation(self) -> dict[str, float]:
        """Send the actor's weights to the rollout engines and make room for their cache; every rank
        calls it.

        With adapters the model's own weights are sent the first time, and A and B alone from then
        on; fully_shard's ranks merge them, and send all weights every time.

        Returns:
            Bytes received by all ranks, the minimum possible, and this rank's seconds.

        Raises:
            TransferError: a received message differs from what was sent.
        """
        engine = self._rollout.engine
        self._sleep()
        # What is not sent leaves the device before the engine's weights take theirs.
        for training, parts in self._offloads:
            for part in parts:
                if training is self._engine and part == "parameters":
                    training.onload(part)
                else:
                    training.offload(part)
        if engine is not None:
            engine.begin_update()
        received, minimum, seconds = 0, 0, 0.0
        for least, stats in self._send():
            received += stats.received_bytes.total()
            minimum += least
            seconds += stats.seconds
        for training, parts in self._offloads:
            if training is self._engine and "parameters" in parts:
                training.offload("parameters")
        if engine is not None:
            engine.finish_update()
        return {
            "reshard/received_bytes": float(sum(self._session.control.allgather(received))),
            "reshard/minimum_bytes": float(minimum),
            "reshard/seconds": seconds,
        }

    def _send(self) -> Iterator[tuple[int, TransferStats]]:
        """Send what may have changed since the last time, and yield the bytes that all ranks needed
        and what it took."""
        sends = self._engine.weights if self._engine is not None else {}
        if self._by_name:
            yield from self._send_by_name(sends)
            return
        engine, arrival = self._rollout.engine, self._arrival
        for number, transfer in enumerate(self._weights):
            receives = engine.weights if engine is not None else {}
            if arrival is not None and number:
                receives = arrival.memory_of(transfer.target)
            sends = self._merged(transfer) if self._merges else sends
            yield transfer.minimum, transfer.run(sends, receives)
            if arrival is not None:
                arrival.keep(receives)
            if number or self._merges:
                transfer.forget()
        if self._adapters is None:
            return
        self._weights, receives = [], {}  # nothing holds the last layer while others are merged
        received = arrival.factors if arrival is not None else {}
        yield self._adapters.minimum, self._adapters.run(sends, received)
        if arrival is not None:
            arrival.merge()

    def _merged(self, transfer: _PlannedTransfer) -> Mapping[str, torch.Tensor]:
        """Return what this rank sends, by local name, with adapters merged."""
        return merged_weights(self._engine, transfer.source) if self._engine is not None else {}

    def _send_by_name(
        self, sends: Mapping[str, torch.Tensor]
    ) -> Iterator[tuple[int, TransferStats]]:
        """Send whole tensors, some at a time, which the rollout engines cut and fuse themselves."""
        engine, rank = self._rollout.engine, self._session.world.rank
        for transfer in self._weights:
            receives = {}
            if engine is not None:
                receives = transfer.new_memory(rank, self._session.device)
            sends = self._merged(transfer) if self._merges else sends
            yield transfer.minimum, transfer.run(sends, receives)
            transfer.forget()
            if engine is not None:
                engine.load(receives)

    def to_training(self) -> None:
        """Put the rollout engine to sleep and bring back offloaded parts."""
        self._sleep()
        for training, parts in self._offloads:
            for part in reversed(parts):
                training.onload(part)

    def _sleep(self) -> None:
        if self._rollout.engine is not None and self._offloads:
            self._rollout.engine.sleep()
