"""Limits that the kernel sets a rank: raised as far as it may, and checked where GPUs need more."""

from __future__ import annotations

import resource
from contextlib import suppress

from verl_hpc.runtime.host_memory import machine_bytes

_RAISED = ("NOFILE", "NPROC", "MEMLOCK", "AS")
"""Open files, processes, locked memory and address space (getrlimit(2)). The stack is not among
them: without a limit of it the kernel lays memory out differently."""
_LEAST_LOCKED = 2**30
"""Bytes that NCCL's buffers for InfiniBand may take together; the kernel locks them in memory."""


PAGE = "docs/site_profile.md, Limits of processes"
"""Where a user reads on."""


def raise_limits() -> None:
    """Raise this process's soft limits to the hard ones, before it opens files."""
    for name in _RAISED:
        kind = getattr(resource, f"RLIMIT_{name}")
        _, hard = resource.getrlimit(kind)
        with suppress(ValueError, OSError):  # such as a container that forbids it
            resource.setrlimit(kind, (hard, hard))


def limit_of(name: str) -> float:
    """The soft limit of NOFILE, MEMLOCK, ...; infinite where there is none."""
    soft, _ = resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))
    return float("inf") if soft == resource.RLIM_INFINITY else soft


def trouble(*, with_infiniband: bool, gpu_bytes: int) -> str | None:
    """What keeps a rank on a GPU from working; None if nothing does.

    CUDA lays the memory of the host and of every GPU that a process sees into one range of its
    address space (CUDA C++ Programming Guide, "Unified Virtual Address Space"), so that it needs
    the sum at least.

    Args:
        with_infiniband: whether NCCL is to use it.
        gpu_bytes: memory of all GPUs that the process sees; 0 where it sees none.
    """
    space, least = limit_of("AS"), machine_bytes() + gpu_bytes
    if space < least:
        return (
            f"the address space is limited to {space / 2**30:.1f} GiB, and CUDA reserves as much "
            f"as the host and its GPUs have memory, {least / 2**30:.1f} GiB; take `ulimit -v` away "
            f"({PAGE})"
        )
    if with_infiniband and limit_of("MEMLOCK") < _LEAST_LOCKED:
        return (
            f"only {limit_of('MEMLOCK') / 2**10:.0f} KiB may be locked in memory, and InfiniBand "
            "registers gigabytes; have the administrators set LimitMEMLOCK=infinity for slurmd, "
            f"or PropagateResourceLimitsExcept=MEMLOCK ({PAGE})"
        )
    return None


def space_note() -> str:
    """Words behind the complaint of a rank that cannot use its GPU; none without such a limit."""
    if limit_of("AS") == float("inf"):
        return ""
    return f" (the address space is limited to {limit_of('AS') / 2**30:.1f} GiB: too little?)"
