"""Devices and memory of nodes: whether torch computes there, and what the planner gets of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from verl_hpc.errors import ClusterError
from verl_hpc.hardware.measured import Measured
from verl_hpc.hardware.node import CPU, GIB
from verl_hpc.runs.verdict import Verdict, fails, listed, ok, unknown
from verl_hpc.runtime.device import Device, check_devices, driver_version, find_device
from verl_hpc.runtime.host_memory import most_bytes
from verl_hpc.runtime.preflight.network import Pair
from verl_hpc.runtime.session import Session


class RankFacts(NamedTuple):
    """What one rank finds on its node."""

    node: int
    device: Device
    torch: str
    """Its version, and what it was built for."""
    driver: str | None
    free_bytes: int | None
    """Free memory of the GPU; None on cores."""
    device_bytes: int | None
    """Memory that a process on a bare GPU can have; None on cores."""
    host_bytes: int
    """Host memory that the job can have on this node."""

    @property
    def model(self) -> str:
        """The GPU, as the driver calls it, or cpu."""
        return self.device.model or CPU


def look(here: Session) -> RankFacts:
    """Compute a matrix product on this rank's GPU, if it has one, and read what there is."""
    import torch

    world = here.world
    device = find_device(world.host, world.local_rank, world.local_size)
    free: Any = None
    total: Any = None
    if device.name != CPU:
        free, total = torch.cuda.mem_get_info(device.name)
    cuda, hip = torch.version.cuda, torch.version.hip
    built = f" (CUDA {cuda})" if cuda else f" (ROCm {hip})" if hip else ""
    version = f"torch {torch.__version__}{built}"
    return RankFacts(world.node, device, version, driver_version(), free, total, most_bytes())


def judge_torch(ranks: Sequence[RankFacts], hosts: Sequence[str], wanted: int | None) -> Verdict:
    """Judge the devices of all ranks.

    Args:
        ranks: in their order.
        hosts: name of each node.
        wanted: GPUs that a node should have; None if no profile says.
    """
    by_version: dict[str, set[str]] = {}
    for one in ranks:
        by_version.setdefault(one.torch, set()).add(hosts[one.node])
    version, *others = sorted(by_version)
    if others:
        told = "; ".join(f"{v} on {listed(sorted(by_version[v]))}" for v in (version, *others))
        return fails("torch", told, "have all nodes read one environment or one image")
    try:
        check_devices([one.device for one in ranks])
    except ClusterError as error:
        bad = sorted({hosts[one.node] for one in ranks if one.device.name == CPU})
        # Where all nodes lack GPUs, the environment or the request is at fault, and no node.
        blamed = bad if len(bad) < len(hosts) else ()
        return fails("torch", str(error), "see docs/site_profile.md", blamed)
    on_gpus = [one for one in ranks if one.device.name != CPU]
    if not on_gpus:
        if wanted:
            todo = f"gpus_per_node is {wanted}; were GPUs asked for (docs/site_profile.md)?"
            return fails("torch", f"{version}: no rank has a GPU", todo)
        return ok("torch", f"{version}; ranks compute on cores")
    drivers = listed(sorted({one.driver or "?" for one in on_gpus}))
    models = listed(sorted({one.model for one in on_gpus}))
    free = min(one.free_bytes or 0 for one in on_gpus) / GIB
    return ok(
        "torch",
        f"{version}, driver {drivers}: a matrix product is right on {len(on_gpus)} x {models}, "
        f"at least {free:.1f} GiB free",
    )


def judge_memory(ranks: Sequence[RankFacts]) -> Verdict:
    """Tell the memory that there is."""
    host = min(one.host_bytes for one in ranks) / GIB
    text = f"{host:.1f} GiB a node"
    models = sorted({one.model for one in ranks})
    sizes = [one.device_bytes / GIB for one in ranks if one.device_bytes is not None]
    if sizes:
        text += f", {min(sizes):.2f} to {max(sizes):.2f} GiB a GPU: {listed(models)}"
    if len(models) > 1:
        return unknown("memory", text, "the planner takes nodes of one kind: measure them apart")
    return ok("memory", text)


def measured_of(
    site: str, nodes: int, ranks: Sequence[RankFacts], speeds: Mapping[Pair, float]
) -> Measured | None:
    """What the planner takes: the least of all ranks and nodes.

    An all-reduce between two nodes has the links of all ranks of a node, so that a rank's share of
    its bus bandwidth is what the planner calls the network.

    Args:
        site: name of the profile.
        nodes: that there are.
        ranks: all of them.
        speeds: bus bandwidth between pairs of nodes, in GB/s.

    Returns:
        None where devices differ, or nodes have different numbers of ranks.
    """
    per_node = set(Counter(one.node for one in ranks).values())
    models = {one.model for one in ranks}
    if len(models) > 1 or len(per_node) > 1:
        return None
    ranks_per_node = per_node.pop()
    sizes = [one.device_bytes for one in ranks if one.device_bytes is not None]
    return Measured(
        measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
        site=site,
        nodes=nodes,
        ranks_per_node=ranks_per_node,
        device=models.pop(),
        device_memory_gib=round(min(sizes) / GIB, 3) if sizes else None,
        host_memory_gib=round(min(one.host_bytes for one in ranks) / GIB, 3),
        network_gb_s=round(min(speeds.values()) / ranks_per_node, 4) if speeds else None,
    )
