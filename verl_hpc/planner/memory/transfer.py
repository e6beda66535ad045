"""Buckets of a transfer, and copies in host memory."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import count
from math import lcm

from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.box import View, row_major_strides
from verl_hpc.layout.fragments import Fragment
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.messages import routes_by_pair
from verl_hpc.layout.moves import RankMoves, Receive, Send, moves_of
from verl_hpc.layout.planner import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_ROUNDS,
    HOST_BUCKET_BYTES,
    HOST_PIECE_BYTES,
    HOST_ROUNDS,
)
from verl_hpc.layout.quantization import SCALES, VALUES
from verl_hpc.layout.shard_map import ITEM_BYTES
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.refit_plan import refit_plans, trained_dtype

_MOST_COUNTED_RANKS = 16
_MOST_COUNTED_BYTES = 32 * 2**30
"""Limit on weights times ranks below which buckets are counted: enumerating all messages of up to 8
MiB then takes a fraction of a second. In larger models every bucket is full."""
_MOST_PLANNED_RANKS = 512
"""Limit on ranks below which peers are counted: planning takes up to a second on 256, and some
seconds on 512."""
_PIECE = 1 << 28
"""Size of the pieces in which engines/shared/offload.py takes page-locked memory."""


def most_bucket_bytes(on_gpu: bool) -> int:
    """Upper bound of a rank's buckets: one for each round under way, in each direction; between
    ranks on cores also a piece that is read in each of two hops."""
    if on_gpu:
        return 2 * DEFAULT_ROUNDS * DEFAULT_BUCKET_BYTES
    return 2 * (HOST_ROUNDS * HOST_BUCKET_BYTES + HOST_PIECE_BYTES)


def counted_buckets(
    config: RunConfig, arch: Architecture, layouts: RunLayouts, hardware: Hardware
) -> Sequence[int] | None:
    """Bytes that each rank keeps for the transfer from training to generation, from its first step
    on, or only in that step if they are of what adapters leave as it is; None where they are not
    counted.

    They are counted in small runs on cores, from the run's own transfer plan. Ranks of a node read
    each other's memory piece by piece, and need buckets only for ranks of other nodes.

    Args:
        config: of a run that generates.
        arch: of the role that generates.
        layouts: of the run.
        hardware: of its nodes.
    """
    num_bytes = arch.num_parameters * ITEM_BYTES[config.rollout_dtype] * layouts.num_ranks
    small = layouts.num_ranks <= _MOST_COUNTED_RANKS and num_bytes <= _MOST_COUNTED_BYTES
    if hardware.kind.is_gpu or not small:
        return None
    plans = refit_plans(config, arch, layouts, hardware)
    nodes = nodes_of(layouts.num_ranks, hardware.ranks_per_node)
    trained = trained_dtype(config.role_settings[next(iter(layouts.train))])
    # Adapters keep their type on the way.
    alike = [trained == config.rollout_dtype, True][: len(plans)]
    quantised = config.rollout.quantization is not None
    of_ranks = []
    for rank, node in enumerate(nodes):
        near = [other for other, of in enumerate(nodes) if of == node and other != rank]
        of_ranks.append(
            max(
                bucket_bytes(moves_of(plan, rank), HOST_ROUNDS, same, near * same, quantised)
                for plan, same in zip(plans, alike, strict=True)
            )
        )
    return of_ranks


def counted_peers(
    config: RunConfig, arch: Architecture, layouts: RunLayouts, hardware: Hardware
) -> int | None:
    """Ranks of other nodes with which the busiest rank exchanges weights; None where that is not
    counted.

    Counted on GPUs, from the plan of a model with few layers and experts: bundles consist of what
    has the same holders, so that more layers and experts add to bundles and make no new ones.

    Args:
        config, arch, layouts, hardware: as of `counted_buckets`.
    """
    if not hardware.kind.is_gpu or layouts.num_ranks > _MOST_PLANNED_RANKS:
        return None
    plans = refit_plans(config, _smaller(arch, config, layouts), layouts, hardware)
    node_of = nodes_of(layouts.num_ranks, hardware.ranks_per_node)
    peers: dict[int, set[int]] = {}
    hops = [hop for plan in plans for hop in plan.hops]
    for sender, receiver in {pair for hop in hops for pair in routes_by_pair(hop)}:
        if node_of[sender] != node_of[receiver]:
            peers.setdefault(sender, set()).add(receiver)
            peers.setdefault(receiver, set()).add(sender)
    return max(map(len, peers.values()), default=0)


def _smaller(arch: Architecture, config: RunConfig, layouts: RunLayouts) -> Architecture:
    """Return a model that is cut as `arch` is, with two or three layers a stage, and two experts on
    each rank that has whole ones."""
    train, rollout = next(iter(layouts.train.values())), config.rollout
    stages = train.pp * train.vpp
    short = -arch.num_layers % stages
    sizes = (n * stages - short for n in count(2))
    num_layers = next(n for n in sizes if n % rollout.pipeline_parallel == 0)
    whole = lcm(train.ep, rollout.tensor_parallel if rollout.expert_parallel else 1)
    num_layers = min(num_layers, arch.num_layers)
    return replace(
        arch,
        num_layers=num_layers,
        num_dense_layers=min(arch.num_dense_layers, num_layers - 1),
        num_experts=min(2 * whole, arch.num_experts),
    )


def bucket_bytes(
    moves: RankMoves,
    rounds: int,
    same_dtype: bool = True,
    neighbours: Collection[int] = (),
    quantised: bool = False,
) -> int:
    """Bytes of one rank's buckets for these moves, as `transfer.exchange.Buckets` grows them, and
    of the pieces that `transfer.reads.Reads` needs.

    Args:
        rounds: number of rounds in flight at a time.
        same_dtype: whether what is sent has the type that travels.
        neighbours: ranks whose memory is read, and that read this one's.
        quantised: whether linear layers are quantised before they are sent.
    """
    # Each round has its own buckets, reused by every hop, which grow to their largest message.
    largest: dict[tuple[str, int], int] = {}
    pieces = 0
    for hop in moves.hops:
        read = [item for step in hop if step.frm in neighbours for item in step.receives]
        pieces += max((_piece(item) for item in read), default=0)
        kept = [step.without(neighbours) for step in hop]
        for place, step in enumerate(step for step in kept if step.sends or step.receives):
            for kind, message in (("send", step.sends), ("receive", step.receives)):
                if message and not _in_place(message, same_dtype, quantised):
                    key = kind, place % rounds
                    size = sum(item.fragment.num_bytes for item in message)
                    largest[key] = max(largest.get(key, 0), size)
    return sum(largest.values()) + pieces


def _piece(item: Receive) -> int:
    """Bytes of the buffer into which a fragment is read; 0 if it can be read in place."""
    fragment = item.fragment
    if _lies(fragment, item.targets[0]):
        return 0
    row = fragment.num_bytes // fragment.box.shape[0]
    return min(max(HOST_PIECE_BYTES // row, 1) * row, fragment.num_bytes)


def _in_place(
    message: Iterable[Send] | Iterable[Receive], same_dtype: bool, quantised: bool
) -> bool:
    """Whether a message is sent from, or received into, the memory of its tensor."""
    first, *more = message
    if more:
        return False
    view = first.view if isinstance(first, Send) else first.targets[0]
    # What is received, and what is passed on, is target memory, which has the type that travels.
    has_type = same_dtype or isinstance(first, Receive) or first.relay
    has_type = has_type or (quantised and _is_quantised(first.fragment))
    return _lies(first.fragment, view) and has_type


def _is_quantised(fragment: Fragment) -> bool:
    """Whether a fragment is of quantised values or scales, which already have the dtype that
    travels."""
    return fragment.num_bytes // fragment.box.num_elements in (
        ITEM_BYTES[VALUES],
        ITEM_BYTES[SCALES],
    )


def _lies(fragment: Fragment, view: View) -> bool:
    """Whether a fragment's bytes lie in memory as they travel."""
    shape = fragment.box.shape
    wanted = row_major_strides(shape)
    return all(n == 1 or a == b for n, a, b in zip(shape, view.strides, wanted, strict=True))


def page_locked(num_bytes: int) -> int:
    """Page-locked memory of all that is offloaded together: PyTorch rounds each piece up to a power
    of 2."""
    whole, rest = divmod(num_bytes, _PIECE)
    return whole * _PIECE + (1 << (rest - 1).bit_length() if rest else 0)
