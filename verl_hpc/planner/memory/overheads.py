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
PEERS_OUTSIDE, PEERS_OF_EXPERTS = 56, 228
"""Peers on other nodes of a dense model and of a mixture of experts, assumed where no plan is made
that tells them: in searches, and on many ranks. They are the most that were counted: Llama-3.1-70B
from TP8 PP8 to TP1, and Qwen3-235B-A22B from TP2 PP4 EP32 to TP8 on 512 ranks (192 on 256)."""
ALLOCATOR = 0.05
"""Fraction of a pass's memory lost to fragmentation in PyTorch's allocator, with expandable
segments, which ranks use."""
PROCESS = 4096 * MIB
"""Resident in host memory: Python, PyTorch, vLLM and their libraries, and CUDA's own buffers."""
CPU_PROCESS = 1024 * MIB
"""Resident host memory of a rank that computes on cores."""


def groups_of(
    layout: TrainLayout, rank: int, sums_embeddings: bool = False
) -> set[tuple[int, int, int]]:
    """First rank, distance and number of ranks of a rank's groups of a training layout that pass
    tensors of the device.

    They are those of tensor, data, context and pipeline parallelism, of experts, of the first and
    the last stage where both sum gradients of tied embeddings, and of all ranks for the norm of the
    gradient. Those with the same ranks are one (`runtime.groups.Groups`).
    """
    tp, dp, shards, experts = layout.tp, layout.dp, layout.num_shards, layout.ep * layout.etp
    sizes = {(1, tp), (tp, layout.cp), (tp * dp, layout.pp), (1, layout.num_ranks)}
    sizes |= {(tp, shards), (tp * shards, dp // shards)}
    if experts > 1:
        sizes |= {(1, layout.etp), (layout.etp, layout.ep), (1, experts)}
        sizes.add((experts, tp * dp // experts))
    place, stage_size = rank - layout.first_rank, tp * dp
    if sums_embeddings and place // stage_size in (0, layout.pp - 1):
        sizes.add((stage_size * (layout.pp - 1), 2 if layout.pp > 1 else 1))
    return {
        (rank - place // distance % number * distance, distance, number)
        for distance, number in sizes
        if number > 1
    }


def communicators_of(layout: TrainLayout) -> int:
    """Number of communicators that a training layout uses at least."""
    return len(groups_of(layout, layout.first_rank))


def num_communicators(
    layouts: Iterable[tuple[TrainLayout, bool]], rank: int, rollout_size: int
) -> int:
    """NCCL communicators of a rank that have more than one rank and are used.

    Besides those of training layouts an engine has one, and resharding that of the world.

    Args:
        layouts: of the run, each with `sums_embeddings`; those without the rank are ignored.
        rank: number of the rank.
        rollout_size: ranks of its rollout engine; 0 or 1 without others.
    """
    groups = {
        group
        for layout, sums_embeddings in layouts
        if 0 <= rank - layout.first_rank < layout.num_ranks
        for group in groups_of(layout, rank, sums_embeddings)
    }
    return 1 + len(groups) + (rollout_size > 1)


def peer_channels(
    num_ranks: int, ranks_per_node: int, outside: int | None = None, experts: bool = False
) -> int:
    """Bytes of the channels to those that weights go to and come from.

    Args:
        num_ranks: of the run.
        ranks_per_node: of its nodes.
        outside: peers on other nodes; None assumes a number.
        experts: whether the model that generates is a mixture of experts.
    """
    inside = min(num_ranks, ranks_per_node) - 1
    if outside is None:
        most = PEERS_OF_EXPERTS if experts else PEERS_OUTSIDE
        outside = min(max(num_ranks - ranks_per_node, 0), most)
    return inside * PEER_IN_NODE + outside * PEER_OUTSIDE
