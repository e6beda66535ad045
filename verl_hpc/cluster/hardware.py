"""The hardware of a site, as the planner takes it."""

from __future__ import annotations

import re

from verl_hpc.cluster.site import Site
from verl_hpc.errors import ConfigError
from verl_hpc.planner.hardware import GIB, NAMES, Hardware, gpu_kind

_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""As sbatch reads --mem: megabytes, unless a letter follows."""


def hardware_of(site: Site, gpu: str | None = None) -> Hardware:
    """The nodes of a site.

    Args:
        site: the profile.
        gpu: a kind of GPU instead of the profile's.

    Raises:
        ConfigError: nothing says which GPUs the nodes have, or there is no such kind.
    """
    name = gpu or site.gpu or ("cpu" if not site.gpus_per_node else None)
    if name is None:
        raise ConfigError(
            f"site {site.name}: gpu is not given, and the planner must know which GPUs the nodes "
            f"have; set it in the profile to one of {', '.join(n for n in NAMES if n != 'cpu')}"
        )
    return Hardware(gpu_kind(name), site.ranks_per_node, site.links, host_bytes(site))


def host_bytes(site: Site) -> int | None:
    """Memory of a node that a job can have; None where the profile leaves it open."""
    if site.host_memory_gib is not None:
        return int(site.host_memory_gib * GIB)
    found = re.fullmatch(r"(\d+)([KMGT]?)B?", (site.memory or "").upper())
    number = int(found[1]) if found else 0
    return number * _UNITS[found[2]] if found and number else None
