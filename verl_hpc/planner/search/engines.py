"""Rollout engines of every size, and why those that lost did: for people to read."""

from __future__ import annotations

from dataclasses import dataclass

from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.search.cuts import rollout_sizes
from verl_hpc.planner.timing.generation import at_a_time, generate_cost
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.operator_costs import engines
from verl_hpc.planner.timing.workload import Workload

_GIB = 2**30
_MOST = 3


@dataclass(frozen=True)
class EngineSize:
    """Engines of one tensor-parallel size on all ranks that generate."""

    tp: int
    seconds: float | None
    """Of a step's responses; None where an engine cannot hold the longest sequence."""
    at_a_time: float
    """Sequences that one engine decodes together."""
    cache_gib: float | None
    """That a rank has for keys and values; None without a limit."""
    why: str
    """What its seconds are, or what it lacks."""


def engine_sizes(
    config: RunConfig, arch: Architecture, machine: Machine, num_ranks: int, work: Workload
) -> list[EngineSize]:
    """Every size that the model and the ranks allow, ascending: Algorithm 2's enlarging.

    Args:
        config: of the run.
        arch: of the model that generates.
        machine: what it runs on.
        num_ranks: that generate.
        work: of a step.
    """
    pp = config.rollout.pipeline_parallel
    sizes = rollout_sizes(arch, num_ranks, machine.hardware.ranks_per_node, pp)
    return [_size(config, arch, machine, num_ranks, work, tp) for tp in sizes]


def _size(
    config: RunConfig,
    arch: Architecture,
    machine: Machine,
    num_ranks: int,
    work: Workload,
    tp: int,
) -> EngineSize:
    found = engines(config, arch, machine, num_ranks, tp)
    width = at_a_time(found, work)
    cache = None if found.cache_bytes is None else found.cache_bytes / _GIB
    if width < 1:
        weights = found.weight_bytes / _GIB
        why = f"{weights:.1f} GiB of weights leave {cache or 0.0:.1f} GiB for a cache, less than "
        return EngineSize(tp, None, width, cache, f"{why}the longest sequence takes")
    cost = generate_cost(machine, found, work)
    terms = list(machine.efficiency.by_term(cost).items())[:_MOST]
    why = ", ".join(f"{term} {seconds:.1f} s" for term, seconds in terms)
    return EngineSize(tp, machine.seconds(cost), width, cache, why)
