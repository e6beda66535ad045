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
from verl_hpc.planner.search.pareto_front import Option
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


class SetLedgers:
    """Memory ledgers of the sets of a searched run."""

    def __init__(self, run: SearchedRun) -> None:
        self._run = run
        self._known: dict[tuple[object, ...], bool] = {}

    def fits(
        self, num_ranks: int, options: Mapping[str, Option], sharing: Mapping[str, str]
    ) -> bool:
        """Whether all phases fit on every rank of a set.

        Args:
            num_ranks: of the set.
            options: of its roles, and of ROLLOUT if that is the set.
            sharing: the owner of the engine that another of its roles computes in.
        """
        choices = ((name, one.cut, one.rollout_tp) for name, one in options.items())
        key = (num_ranks, *choices, *sharing.items())
        if key not in self._known:
            self._known[key] = self._fits(num_ranks, options, sharing)
        return self._known[key]

    def _fits(
        self, num_ranks: int, options: Mapping[str, Option], sharing: Mapping[str, str]
    ) -> bool:
        cuts = {name: one.cut for name, one in options.items() if one.cut is not None}
        tp = next((one.rollout_tp for one in options.values() if one.rollout_tp), None)
        engines = () if tp is None else self._engines(num_ranks, tp)
        ledger = set_ledger(self._run, cuts, sharing, engines, tp)
        first, *others = (rank for rank in ledger.classes.values() if rank < num_ranks)
        # After the first class, the last ones refuse most often.
        for rank in (first, *reversed(others)):
            for phase in ledger.of_rank(rank):
                room = phase.room_bytes
                if not phase.fits or (room is not None and room < self._run.spare_bytes):
                    return False
        return True

    def _engines(self, num_ranks: int, tp: int) -> Groups:
        size = tp * self._run.config.rollout.pipeline_parallel
        return tuple(tuple(range(i, i + size)) for i in range(0, num_ranks, size))


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
