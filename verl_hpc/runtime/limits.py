"""Limits that the kernel sets a rank: raised as far as it may, and checked where GPUs need more."""

from __future__ import annotations

import resource
from contextlib import suppress

from verl_hpc.errors import ClusterError

_RAISED = ("NOFILE", "NPROC", "MEMLOCK", "AS")
"""Open files, processes, locked memory and address space (getrlimit(2)). The stack is not among
them: without a limit of it the kernel lays memory out differently."""
_LEAST_LOCKED = 2**30
"""Bytes that NCCL's buffers for InfiniBand may take together; the kernel locks them in memory."""


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


def trouble(*, with_infiniband: bool) -> str | None:
    """What keeps a rank on a GPU from working; None if nothing does.

    Args:
        with_infiniband: whether NCCL is to use it.
    """
    if limit_of("AS") != float("inf"):
        return (
            f"the address space is limited to {limit_of('AS') / 2**30:.1f} GiB, and CUDA reserves "
            "more than that; take `ulimit -v` away (docs/site_profile.md)"
        )
    if with_infiniband and limit_of("MEMLOCK") < _LEAST_LOCKED:
        return (
            f"only {limit_of('MEMLOCK') / 2**10:.0f} KiB may be locked in memory, and InfiniBand "
            "registers gigabytes; have the administrators set LimitMEMLOCK=infinity for slurmd, "
            "or PropagateResourceLimitsExcept=MEMLOCK"
        )
    return None


def check_limits(host: str, *, with_infiniband: bool) -> None:
    """Refuse limits that a rank on a GPU cannot work with.

    Raises:
        ClusterError: naming the limit, and what to do about it.
    """
    if (why := trouble(with_infiniband=with_infiniband)) is not None:
        raise ClusterError(f"{host}: {why}")
