"""The hardware of a site, as the planner takes it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from verl_hpc.cluster.gpu import kind_of
from verl_hpc.cluster.site import Site
from verl_hpc.errors import ConfigError
from verl_hpc.hardware.measured import read_measured
from verl_hpc.hardware.node import CPU, GIB, NAMES, OWN_FIGURES, GpuKind, Hardware, gpu_kind
from verl_hpc.layout.link_model import Links

_LIKE_LINKS = "H100-80"
"""The kind whose figures `Links` has by default."""
_UNITS = {"": 2**20, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
"""Bytes by the letter behind a number of --mem; sbatch reads megabytes without one."""


def hardware_of(site: Site, gpu: str | None = None, measured: str | None = None) -> Hardware:
    """The nodes of a site: each figure as it was measured, else as the profile says, else as the
    kind of GPU has it.

    Args:
        site: the profile.
        gpu: a kind of GPU instead of the profile's.
        measured: a file of the doctor's instead of the profile's.

    Raises:
        ConfigError: nothing says which GPUs the nodes have, there is no such kind, or the file
            cannot be read or is of other hardware.
    """
    kind, per_node = _kind(site, gpu), site.ranks_per_node
    hardware = Hardware(kind, per_node, site.links, host_bytes(site))
    file = measured or site.measured
    if file is None:
        return replace(hardware, assumptions=tuple(_assumptions(hardware)))
    path = Path(file)
    named = f"--measured {path}" if measured else f"site {site.name}: measured = {path}"
    figures = read_measured(path, named)
    figures.check(kind, per_node, named)
    links = hardware.given
    if figures.network_gb_s is not None:
        links = links.model_copy(update={"network_gb_s": figures.network_gb_s})
    hardware = replace(
        hardware,
        given=links,
        host_bytes=figures.host_bytes or hardware.host_bytes,
        measured_device_bytes=figures.device_bytes,
    )
    return replace(hardware, assumptions=(figures.assumption(path), *_assumptions(hardware)))


def links_of(site: Site) -> Links:
    """What messages get of a site's links; those of an H100 where it does not say which GPUs its
    nodes have."""
    unknown = site.gpu is None and site.gpus_per_node
    return hardware_of(site, _LIKE_LINKS if unknown else None).links


def _kind(site: Site, gpu: str | None) -> GpuKind:
    if gpu is not None:
        return gpu_kind(gpu)
    if site.gpu is not None:
        return kind_of(site.gpu, site.gpu_figures)
    if not site.gpus_per_node:
        return gpu_kind(CPU)
    raise ConfigError(
        f"site {site.name}: gpu is not given, and the planner must know which GPUs the nodes "
        f"have; set it in the profile to one of {', '.join(n for n in NAMES if n != CPU)}, or "
        f"{OWN_FIGURES}"
    )


def _assumptions(hardware: Hardware) -> Iterator[str]:
    """Yield what is assumed of the hardware because nobody gave it."""
    kind = hardware.kind
    unit = "GPU" if kind.is_gpu else "rank"
    if hardware.given.network_gb_s is None:
        why = "as 400 Gb/s for each" if kind.is_gpu else "as memory"
        yield (
            f"The network carries {hardware.network_gb_s:g} GB/s a {unit}, {why}: nobody says so "
            "(links.network_gb_s of the site profile, or what `doctor --nodes` measures)."
        )
    if hardware.host_bytes is None:
        yield (
            "No use of host memory is refused: nobody says how much a node has (host_memory_gib of "
            "the site profile, or what `doctor --nodes` measures)."
        )
    if not kind.is_gpu:
        yield (
            "Each rank computes on a core of its own, as fast as one of a server; ranks that share "
            "cores, or have several, take other seconds: `plan calibrate` fits them."
        )
    if kind.is_gpu:
        what = "Figures" if hardware.measured_device_bytes is None else "Other figures"
        yield f"{what} of {kind.name}: {kind.source}."


def host_bytes(site: Site) -> int | None:
    """Memory of a node that a job can have; None where the profile leaves it open."""
    if site.host_memory_gib is not None:
        return int(site.host_memory_gib * GIB)
    match = re.fullmatch(r"(\d+)([KMGT]?)B?", (site.memory or "").upper())
    number = int(match[1]) if match else 0
    return number * _UNITS[match[2]] if match and number else None
