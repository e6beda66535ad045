"""The cores and the GPU of each rank, and whether its launcher gave it what was asked for.

A rank that shares one core with seven others runs, and is many times slower; nothing shows it but
the numbers here. srun, for one, does not inherit --cpus-per-task from sbatch: a step that does not
repeat it gets one core a rank.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from verl_hpc.config.spans import parse_spans, spans
from verl_hpc.errors import ClusterError
from verl_hpc.runs.verdict import counted
from verl_hpc.runtime import environment
from verl_hpc.runtime.session import Session
from verl_hpc.runtime.world import World

_log = logging.getLogger(__name__)
_NUMA = Path("/sys/devices/system/node")


@dataclass(frozen=True)
class Binding:
    """What one rank may use of its node."""

    rank: int
    host: str
    device: str
    cores: frozenset[int]
    """Logical cores that the kernel lets it run on."""
    asked: int | None
    """Cores that Slurm was asked for; None without Slurm, or if it was not asked."""
    node_cores: int
    """Logical cores of the node."""
    numa: tuple[int, ...] = ()
    """Memory domains of its cores."""


def read_binding(world: World, environ: Mapping[str, str] = os.environ) -> Binding:
    """This rank's."""
    cores = frozenset(os.sched_getaffinity(0))
    asked = environ.get("SLURM_CPUS_PER_TASK") if "SLURM_STEP_ID" in environ else None
    return Binding(
        rank=world.rank,
        host=world.host,
        device=world.device,
        cores=cores,
        asked=int(asked) if asked else None,
        node_cores=os.cpu_count() or 1,
        numa=numa_domains(cores),
    )


def describe(binding: Binding, size: int) -> str:
    """`rank 5/128 node n012 gpu 5 cpu 60-71`."""
    _, _, gpu = binding.device.partition(":")
    words = [f"rank {binding.rank}/{size} node {binding.host}"]
    words += [f"gpu {gpu}"] if gpu else []
    words += [f"cpu {spans(binding.cores, ',')}"]
    words += [f"numa {spans(binding.numa, ',')}"] if len(numa_domains()) > 1 else []
    return " ".join(words)


@dataclass(frozen=True)
class Trouble:
    """A node whose ranks have fewer cores than they should."""

    host: str
    text: str
    avoidable: bool
    """The node has the cores: another launch would give them to the ranks."""


def report_binding(here: Session) -> None:
    """Say where each rank is, and warn of nodes without the cores that were asked for.

    Each rank says it where ranks have a log of their own, below the run directory, and not on a
    terminal that all of them share.

    Raises:
        ClusterError: on every rank, if ranks lack cores that their node has.
    """
    mine = read_binding(here.world)
    if environment.has_rank_logs():
        print(describe(mine, here.world.size), flush=True)
    bindings = here.control.allgather(mine)
    for warning in here.control.together(lambda: check_bindings(bindings)):
        if here.world.rank == 0:
            _log.warning(warning)


def find_trouble(bindings: Iterable[Binding]) -> list[Trouble]:
    """Nodes, by name, whose ranks have too few cores or share them though there are enough."""
    by_host: dict[str, list[Binding]] = {}
    for binding in bindings:
        by_host.setdefault(binding.host, []).append(binding)
    found = (_trouble(host, group) for host, group in sorted(by_host.items()))
    return [trouble for trouble in found if trouble is not None]


def check_bindings(bindings: Sequence[Binding]) -> list[str]:
    """Warnings about nodes that do not have the cores that were asked for.

    Raises:
        ClusterError: ranks lack cores that their node has.
    """
    troubles = find_trouble(bindings)
    avoidable = [trouble for trouble in troubles if trouble.avoidable]
    if avoidable:
        raise ClusterError(
            "; ".join(f"{trouble.host}: {trouble.text}" for trouble in avoidable[:4])
            + (f"; and {len(avoidable) - 4} more nodes" if len(avoidable) > 4 else "")
            + ". Repeat --cpus-per-task on srun (it does not inherit sbatch's), or correct "
            "--cpu-bind in srun_args of the site profile"
        )
    return [f"{trouble.host}: {trouble.text}" for trouble in troubles]


def _trouble(host: str, group: Sequence[Binding]) -> Trouble | None:
    asked = max((b.asked or 1 for b in group), default=1)
    needed = asked * len(group)
    there = group[0].node_cores
    together = frozenset[int]().union(*(b.cores for b in group))
    fewest = min(group, key=lambda b: len(b.cores))
    launched_by_slurm = group[0].asked is not None
    if len(fewest.cores) < asked:
        text = f"rank {fewest.rank} has {counted(len(fewest.cores), 'core')} "
        text += f"({spans(fewest.cores, ',')}) of the {asked} asked for; the node has {there}"
    elif len(together) < needed and (there >= needed or launched_by_slurm):
        text = f"{len(group)} ranks share {counted(len(together), 'core')} "
        text += f"({spans(together, ',')}) and need {needed}; the node has {there}"
    else:
        return None
    return Trouble(host, text, avoidable=there >= needed)


def overlaps(bindings: Sequence[Binding]) -> bool:
    """Whether two ranks of a node may run on the same core."""
    taken = [(binding.host, core) for binding in bindings for core in binding.cores]
    return len(set(taken)) < len(taken)


def numa_domains(cores: Iterable[int] | None = None) -> tuple[int, ...]:
    """Memory domains of these cores, or all of the node; none where the kernel does not say."""
    wanted = None if cores is None else set(cores)
    found = []
    for directory in _NUMA.glob("node[0-9]*"):
        theirs = parse_spans((directory / "cpulist").read_text())
        if wanted is None or wanted & theirs:
            found.append(int(directory.name.removeprefix("node")))
    return tuple(sorted(found))
