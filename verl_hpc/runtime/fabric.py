"""InfiniBand of a node, as the kernel sees it and as programs can use it.

Where the second is missing, NCCL silently falls back to TCP, some twenty times slower.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.errors import ClusterError
from verl_hpc.runtime import environment
from verl_hpc.runtime.control import Control

_ADAPTERS = Path("/sys/class/infiniband")
_SLINGSHOT = Path("/sys/class/cxi")
_LIBRARY = "libibverbs.so.1"


@dataclass(frozen=True)
class Fabric:
    """InfiniBand adapters of a node by name, such as mlx5_0."""

    active: tuple[str, ...] = ()
    """With a port that is up. RoCE and other fabrics do not count."""
    known: tuple[str, ...] | None = None
    """Those that the verbs library has a driver for; None without the library."""
    usable: tuple[str, ...] = ()
    """Those that it can open."""


def read_fabric(directory: Path = _ADAPTERS, library: str = _LIBRARY) -> Fabric:
    """This node's; the library is asked only where an adapter is active."""
    active = tuple(sorted(d.name for d in directory.glob("*") if _is_active(d)))
    if not active:
        return Fabric()
    try:
        verbs = ctypes.CDLL(library)
    except OSError:
        return Fabric(active)
    known, usable = _devices(verbs)
    return Fabric(active, known, usable)


def trouble(fabric: Fabric) -> str | None:
    """Why the active adapters cannot be used, and what to do; None if one can be."""
    if not fabric.active or set(fabric.active) & set(fabric.usable):
        return None
    names = ", ".join(fabric.active)
    if fabric.known is None:
        return f"{names} up, but {_LIBRARY} is missing: install libibverbs1 and ibverbs-providers"
    if not set(fabric.active) & set(fabric.known):
        return (
            f"{names} up, but libibverbs has no driver for it: install ibverbs-providers "
            "(libmlx5), in the image where there is one"
        )
    return f"{names} up, but cannot be opened: is /dev/infiniband there, also in the container?"


def wanted_infiniband(
    control: Control, num_nodes: int, read: Callable[[], Fabric] = read_fabric
) -> Fabric | None:
    """This node's adapters, if NCCL is to use InfiniBand; every rank calls it.

    It is to, where ranks are on several nodes, one of these has an adapter that is up, and the
    environment chooses no other network for NCCL.

    Returns:
        None on every rank, or on none; adapters of a node that has none are empty.
    """
    if num_nodes < 2 or environment.uses_other_network():
        return None
    mine = read()
    return mine if control.any(bool(mine.active)) else None


def check_fabric(fabric: Fabric) -> None:
    """Refuse a node whose adapters are up and cannot be used.

    Raises:
        ClusterError: naming what is missing.
    """
    if (why := trouble(fabric)) is not None:
        raise ClusterError(
            f"{environment.node_name()}: InfiniBand {why}. Or set NCCL_NET=Socket to use TCP"
        )


def has_slingshot(directory: Path = _SLINGSHOT) -> bool:
    """Whether this node has an adapter of HPE's Slingshot, by the class of its driver."""
    return any(directory.glob("cxi*"))


def network_of(log: str) -> str | None:
    """What NCCL writes that it uses between nodes (NCCL_DEBUG=INFO): IB, Socket or a plugin."""
    found = re.findall(r"NCCL INFO Using network (.+)", log)
    return found[-1].strip() if found else None


def _is_active(adapter: Path) -> bool:
    return any(
        _read(port / "link_layer") == "InfiniBand" and "ACTIVE" in _read(port / "state")
        for port in adapter.glob("ports/*")
    )


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError:  # such as a port that the driver hides
        return ""


def _devices(verbs: ctypes.CDLL) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Names of the devices that the library knows, and of those that it can open."""
    pointer = ctypes.c_void_p
    verbs.ibv_get_device_list.restype = ctypes.POINTER(pointer)
    verbs.ibv_get_device_name.restype = ctypes.c_char_p
    verbs.ibv_open_device.restype = pointer
    for name in ("get_device_name", "open_device", "close_device", "free_device_list"):
        getattr(verbs, f"ibv_{name}").argtypes = [pointer]
    count = ctypes.c_int(0)
    devices = verbs.ibv_get_device_list(ctypes.byref(count))
    known, usable = [], []
    for device in devices[: count.value] if devices else ():
        name = verbs.ibv_get_device_name(device).decode()
        known.append(name)
        if opened := verbs.ibv_open_device(device):
            usable.append(name)
            verbs.ibv_close_device(opened)
    if devices:
        verbs.ibv_free_device_list(devices)
    return tuple(known), tuple(usable)
