"""Check a set of roles on its ranks against the memory ledger before a run is laid out.

Sets share no ranks, so that a run fits where each of its sets does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.bases import shared_bases
from verl_hpc.placement.layouts import Groups, RunLayouts
from verl_hpc.planner.memory.ledger import Ledger
from verl_hpc.planner.memory.rollout import rollout_shape
from verl_hpc.planner.search.cuts import Cut
from verl_hpc.planner.shape import RoleShape
from verl_hpc.planner.timing.machine import Machine
from verl_hpc.planner.timing.workload import Workload


@dataclass(frozen=True)
class SearchedRun:
    """A run whose placement and layouts are searched."""

    config: RunConfig
    settings: Mapping[str, RoleSettings]
    """Settings of every role; roles share an engine only where they must."""
    archs: Mapping[str, Architecture]
    """Architecture of every role."""
    machine: Machine
    work: Workload
    """Work of a step."""
    num_ranks: int
    spare_bytes: int
    """Bytes to leave free on every device."""

    @property
    def hardware(self) -> Hardware:
        return self.machine.hardware

    @property
    def first(self) -> str:
        """The role that generates."""
        return next(iter(self.settings))


Choices = tuple[tuple[str, Cut | None, int | None], ...]
"""Each role of a set, with its layout and the tensor-parallel size of the engines on its ranks."""


def set_fits(
    run: SearchedRun, num_ranks: int, choices: Choices, sharing: tuple[tuple[str, str], ...]
) -> bool:
    """Whether all phases fit on every rank of a set.

    Args:
        run: the searched run.
        num_ranks: of the set.
        choices: of its roles, and of ROLLOUT if that is the set.
        sharing: others of its roles, each with the owner of the engine that it computes in.
    """
    cuts = {name: cut for name, cut, _ in choices if cut is not None}
    tp = next((tp for _, _, tp in choices if tp), None)
    engines = () if tp is None else _engines(num_ranks, tp * run.config.rollout.pipeline_parallel)
    ledger = set_ledger(run, cuts, dict(sharing), engines, tp)
    first, *others = (rank for rank in ledger.classes.values() if rank < num_ranks)
    # After the first class, the last ones refuse most often.
    for rank in (first, *reversed(others)):
        for phase in ledger.of_rank(rank):
            room = phase.room_bytes
            if not phase.fits or (room is not None and room < run.spare_bytes):
                return False
    return True


def _engines(num_ranks: int, size: int) -> Groups:
    """The ranks of each engine of so many ranks."""
    return tuple(tuple(range(first, first + size)) for first in range(0, num_ranks, size))


def set_ledger(
    run: SearchedRun,
    cuts: Mapping[str, Cut],
    sharing: Mapping[str, str],
    engines: Groups = (),
    rollout_tp: int | None = None,
) -> Ledger:
    """The ledger of a run that consists of one set alone, on the first ranks.

    Args:
        run: the searched run.
        cuts: layout of each role of the set that has an engine.
        sharing: the owner of the engine that another of its roles computes in.
        engines: ranks of each rollout engine.
        rollout_tp: their tensor-parallel size; None takes the configured one.
    """
    on_gpu = run.hardware.kind.is_gpu
    settings, shapes, layouts = {}, {}, {}
    for name, cut in cuts.items():
        given = run.settings[name]
        settings[name] = replace(given, parallel=cut.parallel(given.parallel))
        layouts[name] = cut.layout
        shapes[name] = RoleShape.of_role(settings[name], run.archs[name], cut.layout, on_gpu)
    for name, owner in sharing.items():
        settings[name] = replace(
            settings[owner], name=name, optimizer=None, lora=None, shares=owner
        )
    rollout = None
    if run.config.generates:
        rollout = rollout_shape(run.config, run.archs[run.first], on_gpu, rollout_tp)
    bases = shared_bases(settings, layouts)
    placed = RunLayouts(run.num_ranks, layouts, engines, "contiguous", {}, {}, bases)
    return Ledger(run.config, placed, run.hardware, shapes, rollout, settings)
