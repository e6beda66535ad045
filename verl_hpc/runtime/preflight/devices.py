"""Whether torch itself can compute on the GPU of every rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from verl_hpc.errors import ClusterError
from verl_hpc.hardware.node import GIB
from verl_hpc.runs.verdict import Verdict, fails, listed, ok
from verl_hpc.runtime.device import Device, check_devices, driver_version, find_device
from verl_hpc.runtime.session import Session


class TorchDevice(NamedTuple):
    """What torch says on one rank."""

    node: str
    device: Device
    torch: str
    """Its version, and what it was built for."""
    driver: str | None
    free_bytes: int | None
    """Free memory of the GPU; None on cores."""


def check_torch(here: Session, hosts: Sequence[str], wanted: int | None) -> Verdict:
    """Compute a matrix product on the GPU of every rank; all ranks call it.

    Args:
        hosts: name of each node.
        wanted: GPUs that a node should have; None if no profile says.
    """
    return judge_torch(here.control.allgather(_look(here, hosts[here.world.node])), wanted)


def judge_torch(found: Sequence[TorchDevice], wanted: int | None) -> Verdict:
    """Judge the devices of all ranks, in the order of their ranks; `wanted` as above."""
    versions = sorted({one.torch for one in found})
    if len(versions) > 1:
        by_version = [(v, sorted({one.node for one in found if one.torch == v})) for v in versions]
        told = "; ".join(f"{version} on {listed(nodes)}" for version, nodes in by_version)
        return fails("torch", told, "have all nodes read one environment or one image")
    try:
        check_devices([one.device for one in found])
    except ClusterError as error:
        nodes = {one.node for one in found}
        bad = sorted({one.node for one in found if one.device.name == "cpu"})
        # Where all nodes lack GPUs, the environment or the request is at fault, and no node.
        return fails(
            "torch", str(error), "see docs/site_profile.md", bad if len(bad) < len(nodes) else ()
        )
    gpus = [one for one in found if one.device.name != "cpu"]
    if not gpus:
        if wanted:
            todo = f"gpus_per_node is {wanted}; were GPUs asked for (docs/site_profile.md)?"
            return fails("torch", f"{versions[0]}: no rank has a GPU", todo)
        return ok("torch", f"{versions[0]}; ranks compute on cores")
    models = sorted({one.device.model or "?" for one in gpus})
    drivers = sorted({one.driver or "?" for one in gpus})
    free = min(one.free_bytes or 0 for one in gpus) / GIB
    return ok(
        "torch",
        f"{versions[0]}, driver {listed(drivers)}: a matrix product is right on {len(gpus)} x "
        f"{listed(models)}, at least {free:.1f} GiB free",
    )


def _look(here: Session, node: str) -> TorchDevice:
    import torch

    device = find_device(here.world.host, here.world.local_rank, here.world.local_size)
    free: Any = None
    if device.name != "cpu":
        free, _ = torch.cuda.mem_get_info(device.name)
    cuda, hip = torch.version.cuda, torch.version.hip
    built = f" (CUDA {cuda})" if cuda else f" (ROCm {hip})" if hip else ""
    return TorchDevice(node, device, f"torch {torch.__version__}{built}", driver_version(), free)
