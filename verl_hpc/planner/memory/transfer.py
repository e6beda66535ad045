"""Buckets and peers of a transfer, and copies in host memory."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from math import lcm

from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.layout.grid import nodes_of
from verl_hpc.layout.messages import routes_by_pair
from verl_hpc.layout.planner import (
    DEFAULT_BUCKET_BYTES,
    DEFAULT_ROUNDS,
    HOST_BUCKET_BYTES,
    HOST_PIECE_BYTES,
    HOST_ROUNDS,
)
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.refit_plan import refit_plans

_MOST_PLANNED_RANKS = 512
"""Limit on ranks below which peers are counted: planning takes up to a second on 256, and some
seconds on 512."""
_PIECE = 1 << 28
"""Size of the pieces in which engines/shared/offload.py takes page-locked memory."""


def bucket_bytes(on_gpu: bool) -> int:
    """Upper bound of a rank's buckets: one for each round under way, in each direction; between
    ranks on cores also a piece that is read in each of two hops."""
    if on_gpu:
        return 2 * DEFAULT_ROUNDS * DEFAULT_BUCKET_BYTES
    return 2 * (HOST_ROUNDS * HOST_BUCKET_BYTES + HOST_PIECE_BYTES)


def counted_peers(
    config: RunConfig, arch: Architecture, layouts: RunLayouts, hardware: Hardware
) -> int | None:
    """Ranks of other nodes with which the busiest rank exchanges weights; None where that is not
    counted.

    Counted on GPUs, from the plan of a model with few layers and experts: bundles consist of what
    has the same holders, so that more layers and experts add to bundles and make no new ones.

    Args:
        config: of a run that generates.
        arch: of the role that generates.
        layouts: of the run.
        hardware: of its nodes.
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


def page_locked(num_bytes: int) -> int:
    """Page-locked memory of all that is offloaded together: PyTorch rounds each piece up to a power
    of 2."""
    whole, rest = divmod(num_bytes, _PIECE)
    return whole * _PIECE + (1 << (rest - 1).bit_length() if rest else 0)
