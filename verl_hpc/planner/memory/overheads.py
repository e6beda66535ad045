"""Assumed memory of a process on its device and node before it computes anything.

None of it follows from a configuration alone, so each figure says where it comes from, and the
ledger lists it among its assumptions.
"""

from __future__ import annotations

from collections.abc import Iterable

from verl_hpc.layout.megatron import TrainLayout

MIB = 2**20
CONTEXT = 1024 * MIB
"""CUDA context: about 0.5 GiB with modules loaded lazily, and libraries' workspaces (cuBLAS 32 MiB
a handle and stream, Transformer Engine's 32 MiB each, attention's semaphores)."""
COMMUNICATOR = 256 * MIB
"""One NCCL communicator with more than one rank: 24 to 32 channels of rings and trees, about 10 MiB
each with its three protocols (NCCL_BUFFSIZE 4 MiB)."""
PEER_IN_NODE, PEER_OUTSIDE = 64 * MIB, 16 * MIB
"""Channels to one rank that weights are sent to or received from: 16 and 2 of NCCL's, 4 MiB each,
both ways."""
PEERS_OUTSIDE = 16
"""Peers on other nodes, assumed where no plan is made that tells them: in searches, and on many
ranks. Dense models have 3 to 30, mixtures of experts up to 120 on 256 ranks."""
ALLOCATOR = 0.05
"""Fraction of a pass's memory lost to fragmentation in PyTorch's allocator, with expandable
segments, which ranks use."""
PROCESS = 4096 * MIB
"""Resident in host memory: Python, PyTorch, vLLM and their libraries, and CUDA's own buffers."""
CPU_PROCESS = 1024 * MIB
"""Resident host memory of a rank that computes on cores."""


def communicators_of(layout: TrainLayout) -> int:
    """Number of communicators that a training layout uses."""
    shards = layout.num_shards
    replicas = (shards, layout.dp // shards)
    sizes = (layout.tp, *replicas, layout.cp, layout.pp, layout.num_ranks)
    return sum(size > 1 for size in sizes)


def num_communicators(layouts: Iterable[TrainLayout], rank: int, rollout_size: int) -> int:
    """NCCL communicators of a rank that have more than one rank and are used.

    A training layout uses those of its tensor-, data-, context- and pipeline-parallel groups, the
    one of all its ranks for the norm of the gradient, and one more where stages share embeddings;
    an engine one; resharding that of the world, which is counted once.

    Args:
        layouts: of the run; those without the rank are ignored.
        rank: number of the rank.
        rollout_size: ranks of its rollout engine; 0 or 1 without others.
    """
    count = 1
    for layout in set(layouts):
        if 0 <= rank - layout.first_rank < layout.num_ranks:
            count += communicators_of(layout)
    return count + (rollout_size > 1)


def peer_channels(num_ranks: int, ranks_per_node: int, outside: int | None = None) -> int:
    """Bytes of the channels to those that weights go to and come from.

    Args:
        num_ranks: of the run.
        ranks_per_node: of its nodes.
        outside: peers on other nodes; None assumes a number.
    """
    inside = min(num_ranks, ranks_per_node) - 1
    if outside is None:
        outside = min(max(num_ranks - ranks_per_node, 0), PEERS_OUTSIDE)
    return inside * PEER_IN_NODE + outside * PEER_OUTSIDE
