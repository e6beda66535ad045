"""Memory of devices and nodes, and all figures together as the planner takes them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import NamedTuple

from verl_hpc.hardware.measured import Measured
from verl_hpc.hardware.node import CPU, GIB
from verl_hpc.runs.verdict import Verdict, listed, ok, unknown
from verl_hpc.runtime.host_memory import most_bytes
from verl_hpc.runtime.preflight.network import Pair
from verl_hpc.runtime.session import Session


class Figures(NamedTuple):
    """Figures of one rank."""

    node: int
    device: str
    """Its GPU, as the driver calls it, or cpu."""
    device_bytes: int | None
    """Memory that a process on a bare GPU can have; None on cores."""
    host_bytes: int
    """Host memory that the job can have on this node."""


def read_figures(here: Session) -> Figures:
    """This rank's."""
    if here.world.device == "cpu":
        return Figures(here.world.node, CPU, None, most_bytes())
    import torch

    _, total = torch.cuda.mem_get_info(here.device)
    name = torch.cuda.get_device_name(here.device)
    return Figures(here.world.node, name, int(total), most_bytes())


def judge_memory(found: Sequence[Figures]) -> Verdict:
    """The memory that there is; of all ranks."""
    host = min(one.host_bytes for one in found) / GIB
    text = f"{host:.1f} GiB a node"
    devices = sorted({one.device for one in found})
    sizes = [one.device_bytes / GIB for one in found if one.device_bytes is not None]
    if sizes:
        text += f", {min(sizes):.2f} to {max(sizes):.2f} GiB a GPU: {listed(devices)}"
    if len(devices) > 1:
        return unknown("memory", text, "the planner takes nodes of one kind: measure them apart")
    return ok("memory", text)


def measured_of(
    site: str, nodes: int, found: Sequence[Figures], speeds: Mapping[Pair, float]
) -> Measured | None:
    """What the planner takes: the least of all ranks and nodes.

    An all-reduce between two nodes has the links of all ranks of a node, so that a rank's share of
    its bus bandwidth is what the planner calls the network.

    Args:
        site: name of the profile.
        nodes: that there are.
        found: of all ranks.
        speeds: bus bandwidth between pairs of nodes, in GB/s.

    Returns:
        None where devices differ, or nodes have different numbers of ranks.
    """
    per_node = set(Counter(one.node for one in found).values())
    devices = {one.device for one in found}
    if len(devices) > 1 or len(per_node) > 1:
        return None
    ranks = per_node.pop()
    sizes = [one.device_bytes for one in found if one.device_bytes is not None]
    return Measured(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        site=site,
        nodes=nodes,
        ranks_per_node=ranks,
        device=devices.pop(),
        device_memory_gib=round(min(sizes) / GIB, 3) if sizes else None,
        host_memory_gib=round(min(one.host_bytes for one in found) / GIB, 3),
        network_gb_s=round(min(speeds.values()) / ranks, 4) if speeds else None,
    )
