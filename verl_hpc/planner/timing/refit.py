"""Weight transfer from training to generation, and what is offloaded for it."""

from __future__ import annotations

from collections.abc import Sequence

from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.generation import zero_redundancy_applies
from verl_hpc.layout.megatron import TrainLayout
from verl_hpc.planner.timing.machine import element_size

_BUCKET = 64 * 2**20


def received_bytes(
    arch: Architecture,
    train: TrainLayout,
    rollout_tp: int,
    dtype: str,
    shared: bool,
    num_stages: int = 1,
) -> tuple[float, float]:
    """Bytes that a rank receives, and that it needs: Table 2 of HybridFlow (arXiv 2409.19256).

    Args:
        shared: the ranks that train are those that generate.
        num_stages: of a rollout engine.
    """
    model = arch.num_parameters * element_size(dtype)
    needed = model / (rollout_tp * num_stages)
    if not shared:
        return needed, needed
    held = model / (train.tp * train.pp)
    if num_stages == 1 and zero_redundancy_applies(train.tp, rollout_tp):
        return needed - held, needed
    # Neighbours: a rank's own shard lies in what it needs by chance.
    return needed * (1 - 1 / (train.tp * train.pp)), needed


def estimated_seconds(
    arch: Architecture,
    train: TrainLayout,
    rollout_tp: int,
    hardware: Hardware,
    dtype: str,
    *,
    shared: bool = True,
    checksums: bool = True,
    num_stages: int = 1,
) -> float:
    """Estimate the transfer's seconds without a plan, for a search: from the bytes that ranks and
    nodes lack.

    Each byte that a node lacks enters it once, over its share of the network; each that a rank
    lacks comes over NVLink, and is copied and summed by the device's memory. On CPU ranks the
    network alone: what their memory takes is in `operator_costs.filled_cost`.
    """
    links, per_node = hardware.links, hardware.ranks_per_node
    received, _ = received_bytes(arch, train, rollout_tp, dtype, shared, num_stages)
    model = arch.num_parameters * element_size(dtype)
    held = _held_by_node(train, per_node) if shared else 0.0
    enters = model * (1 - held) / per_node
    network = enters / (1e9 * links.network_gb_s)
    if not hardware.kind.is_gpu:
        return network
    wire = max(network, received / (1e9 * links.nvlink_gb_s))
    # Packed and unpacked: twice read and written; a checksum on each side reads twice.
    copies = received * (4 + 4 * checksums) / (1e9 * links.memory_gb_s)
    messages = received / _BUCKET + (train.pp if shared else 1)
    return max(wire, copies) + messages * links.message_us / 1e6


def _held_by_node(train: TrainLayout, per_node: int) -> float:
    """Share of the model that the ranks of a node hold together."""
    stage = train.tp * train.dp
    stages = max(per_node // stage, 1)
    shards = min(per_node / stages, train.tp) / train.tp
    return min(stages / train.pp, 1.0) * shards


def offloaded_bytes(parameters_per_rank: float, dp: int, dtype: str, parts: Sequence[str]) -> float:
    """Bytes of one role that are offloaded and come back: weights, and the rank's shard of Adam's
    float32 master weights and two moments. Gradients come back as zeros."""
    num_bytes = 0.0
    if "parameters" in parts:
        num_bytes += element_size(dtype) * parameters_per_rank
    if "optimizer" in parts:
        num_bytes += 12 * parameters_per_rank / dp
    return num_bytes
