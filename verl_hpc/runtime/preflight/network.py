"""Bandwidth between nodes, as the collectives of a training run would see it.

Bus bandwidth of an all-reduce: bytes / seconds * 2 (n - 1) / n over n ranks, as nccl-tests counts
it, so that numbers for two nodes and for all of them compare with each other and with the wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from verl_hpc.runs.verdict import Verdict, fails, listed, ok
from verl_hpc.runtime.preflight.speeds import bus_gb_s, seconds_of
from verl_hpc.runtime.session import Session

Pair = tuple[int, int]
"""Indices of two nodes."""

_MIB = 2**20
_GPU_MIB, _CPU_MIB = 256, 8


def measure_pairs(here: Session, hosts: Sequence[str]) -> dict[Pair, float]:
    """GB/s between each node and its two neighbours in a ring; all ranks call it.

    Args:
        hosts: name of each node.
    """
    import torch.distributed as dist

    speeds: dict[Pair, float] = {}
    for pairs in rounds_of(len(hosts)):
        mine = next((pair for pair in pairs if here.world.node in pair), None)
        seconds = 0.0
        here.control.barrier()
        if mine is not None:
            here.enter(f"all-reduce between {hosts[mine[0]]} and {hosts[mine[1]]}")
            ranks = [r for r, node in enumerate(here.world.node_of) if node in mine]
            group = dist.new_group(ranks, use_local_synchronization=True)
            seconds = _all_reduce_s(here, group)
            dist.destroy_process_group(group)
        took = here.control.allgather(seconds)
        for pair in pairs:
            ranks = [r for r, node in enumerate(here.world.node_of) if node in pair]
            speeds[pair] = _bus_gb_s(here, len(ranks), max(took[r] for r in ranks))
    return speeds


def check_all(here: Session, floor: float | None) -> list[Verdict]:
    """Measure one all-reduce over every rank; all ranks call it."""
    if here.world.size < 2:
        return []
    here.enter("all-reduce of all ranks")
    seconds = max(here.control.allgather(_all_reduce_s(here, None)))
    speed = _bus_gb_s(here, here.world.size, seconds)
    text = f"{speed:.2f} GB/s over {here.world.size} ranks{_floor(floor)}"
    if floor is not None and speed < floor:
        todo = "if pairs are fast, look for a slow switch; is the fabric's plugin loaded?"
        return [fails("all-reduce", text, todo)]
    return [ok("all-reduce", text)]


def rounds_of(num_nodes: int) -> list[list[Pair]]:
    """The pairs of a ring, in rounds in which no node has two: at most three rounds."""
    ring = [(node, (node + 1) % num_nodes) for node in range(num_nodes)]
    if num_nodes <= 2:
        ring = ring[: num_nodes - 1]
    last = [ring.pop()] if num_nodes % 2 and num_nodes > 1 else []
    return [pairs for pairs in (ring[0::2], ring[1::2], last) if pairs]


def slow_nodes(speeds: Mapping[Pair, float], floor: float) -> list[int]:
    """Nodes that are slow with every neighbour, while others are fast: they are to blame.

    One slow pair alone says that one of two nodes is slow, not which.
    """
    slow = {pair for pair, speed in speeds.items() if speed < floor}
    if len(slow) == len(speeds):
        return []
    nodes = sorted({node for pair in speeds for node in pair})
    return [n for n in nodes if all(pair in slow for pair in speeds if n in pair)]


def judge_pairs(speeds: Mapping[Pair, float], hosts: Sequence[str], floor: float | None) -> Verdict:
    """Compare the bandwidth, in GB/s, of pairs of nodes with the floor."""
    low, high = min(speeds.values()), max(speeds.values())
    pairs = "1 pair" if len(speeds) == 1 else f"{len(speeds)} pairs"
    text = f"{low:.2f} to {high:.2f} GB/s in {pairs} of nodes{_floor(floor)}"
    if floor is None or low >= floor:
        return ok("pairs", text)
    slow = sorted(pair for pair, speed in speeds.items() if speed < floor)
    text += f"; slow: {listed([f'{hosts[a]}-{hosts[b]} {speeds[a, b]:.2f}' for a, b in slow])}"
    blamed = [hosts[node] for node in slow_nodes(speeds, floor)]
    if len(slow) == len(speeds):
        todo = "all are slow: is the fabric's plugin loaded, and the floor right?"
    elif blamed:
        todo = f"leave out {listed(blamed)}"
    else:
        todo = "one node of each slow pair is at fault; try again with other neighbours"
    return fails("pairs", text, todo, blamed)


def _floor(floor: float | None) -> str:
    if floor is None:
        return " (preflight.min_bandwidth_gb_s is not set: reported only)"
    return f", at least {floor:g} wanted"


def _all_reduce_s(here: Session, group: Any) -> float:
    """Seconds of one all-reduce, after one that opens the connections."""
    import torch
    import torch.distributed as dist

    data = torch.ones(_num_bytes(here) // 4, device=here.device)
    return seconds_of(here, lambda: dist.all_reduce(data, op=dist.ReduceOp.MAX, group=group))


def _num_bytes(here: Session) -> int:
    return (_CPU_MIB if here.world.device == "cpu" else _GPU_MIB) * _MIB


def _bus_gb_s(here: Session, num_ranks: int, seconds: float) -> float:
    return bus_gb_s("all-reduce", _num_bytes(here), num_ranks, seconds)
