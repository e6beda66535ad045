"""Weight transfer from training to generation, and what is offloaded for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.adapters import AdapterShape, adapter_tensors
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.layout.shard_map import ITEM_BYTES

_BUCKET = 64 * 2**20


@dataclass(frozen=True)
class Refit:
    """A transfer from a training layout to rollout engines; its bytes are those of Table 2 of
    HybridFlow (arXiv 2409.19256)."""

    arch: Architecture
    """Architecture of the role that generates."""
    train: TrainLayout
    rollout_tp: int
    dtype: str
    shared: bool = True
    """Whether the ranks that train are those that generate."""
    num_stages: int = 1
    """Pipeline stages of a rollout engine."""
    adapters: AdapterShape | None = None
    """Adapters that are sent in place of the model; fully_shard's ranks merge theirs before."""

    @classmethod
    def of(
        cls, config: RunConfig, arch: Architecture, train: TrainLayout, tp: int, shared: bool
    ) -> Refit:
        """Transfer of a run to engines of `tp` tensor-parallel ranks."""
        role = next(iter(config.role_settings.values()))
        alone = role.lora if role.parallel.engine != "fsdp" else None
        adapters = AdapterShape.of(alone) if alone is not None else None
        stages = config.rollout.pipeline_parallel
        return cls(arch, train, tp, config.rollout_dtype, shared, stages, adapters)

    @property
    def model_bytes(self) -> float:
        return self.arch.num_parameters * ITEM_BYTES[self.dtype]

    @property
    def sent_bytes(self) -> float:
        """Bytes of what is sent, each once."""
        if self.adapters is None:
            return self.model_bytes
        layer = replace(self.arch, num_layers=1, rope_scaling=None)
        return (
            self.arch.num_layers * _adapter_elements(layer, self.adapters) * ITEM_BYTES[self.dtype]
        )

    @property
    def needed_bytes(self) -> float:
        """Bytes of an engine's weights on a rank."""
        return self.model_bytes / (self.rollout_tp * self.num_stages)

    @property
    def received_bytes(self) -> float:
        """Bytes that a rank receives."""
        train, needed = self.train, self.needed_bytes
        if self.adapters is not None:
            # An upper bound: tensor-parallel ranks each need all of some A and B.
            return self.sent_bytes / self.num_stages
        if not self.shared:
            return needed
        if self.num_stages == 1 and zero_redundancy_applies(train.tp, self.rollout_tp):
            return needed - self.model_bytes / (train.tp * train.pp)
        # Neighbours: a rank's own shard lies in what it needs by chance.
        return needed * (1 - 1 / (train.tp * train.pp))


@lru_cache(maxsize=64)
def _adapter_elements(arch: Architecture, adapters: AdapterShape) -> int:
    """Elements of all A and B of a model."""
    return sum(prod(spec.shape) for spec in adapter_tensors(arch, adapters).values())


def estimated_seconds(refit: Refit, hardware: Hardware, checksums: bool = True) -> float:
    """Estimate the transfer's seconds without a plan, for a search: from the bytes that ranks and
    nodes lack.

    Each byte that a node lacks enters it once, over its share of the network; each that a rank
    lacks comes over NVLink, and is copied and summed by the device's memory. On CPU ranks the
    network alone: what their memory takes is in `operator_costs.filled_cost`.
    """
    links, per_node, received = hardware.links, hardware.ranks_per_node, refit.received_bytes
    held = _held_by_node(refit.train, per_node) if refit.shared else 0.0
    enters = refit.sent_bytes * (1 - held) / per_node
    network = enters / (1e9 * links.network_gb_s)
    if not hardware.kind.is_gpu:
        return network
    wire = max(network, received / (1e9 * links.nvlink_gb_s))
    # Packed and unpacked: twice read and written; a checksum on each side reads twice.
    copies = received * (4 + 4 * checksums) / (1e9 * links.memory_gb_s)
    messages = received / _BUCKET + (refit.train.pp if refit.shared else 1)
    return max(wire, copies) + messages * links.message_us / 1e6


def _held_by_node(train: TrainLayout, per_node: int) -> float:
    """Share of the model that the ranks of a node hold together."""
    stage = train.tp * train.dp
    stages = max(per_node // stage, 1)
    shards = min(per_node / stages, train.tp) / train.tp
    return min(stages / train.pp, 1.0) * shards
