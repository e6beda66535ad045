"""Check a set of roles on its ranks against the memory ledger before a run is laid out.

Sets share no ranks, so that a run fits where each of its sets does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from verl_hpc.placement.bases import alone, shared_bases
from verl_hpc.placement.layouts import RunLayouts
from verl_hpc.planner.memory.ledger import Ledger
from verl_hpc.planner.memory.rollout import rollout_shape
from verl_hpc.planner.memory.shape import RoleShape
from verl_hpc.planner.search.pareto_front import Option
from verl_hpc.planner.search.searched_run import SearchedRun


class SetLedgers:
    """Memory ledgers of the sets of a searched run."""

    def __init__(self, run: SearchedRun) -> None:
        self._run = run
        self._known: dict[tuple[object, ...], bool] = {}
        self.asked = 0

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
            self.asked += 1
            self._known[key] = self._fits(num_ranks, options, sharing)
        return self._known[key]

    def _fits(
        self, num_ranks: int, options: Mapping[str, Option], sharing: Mapping[str, str]
    ) -> bool:
        ledger = self._ledger(num_ranks, options, sharing)
        if alone(ledger.settings, ledger.layouts.train):
            return False
        first, *others = (rank for rank in ledger.classes.values() if rank < num_ranks)
        # After the first class, the last ones refuse most often.
        for rank in (first, *reversed(others)):
            for phase in ledger.of_rank(rank):
                room = phase.room_bytes
                if not phase.fits or (room is not None and room < self._run.spare_bytes):
                    return False
        return True

    def _ledger(
        self, num_ranks: int, options: Mapping[str, Option], sharing: Mapping[str, str]
    ) -> Ledger:
        # A run that consists of this set alone, at ranks 0 to `num_ranks`.
        run, on_gpu = self._run, self._run.hardware.kind.is_gpu
        settings, shapes, layouts = {}, {}, {}
        for name, option in options.items():
            if option.cut is None:
                continue
            given = run.settings[name]
            settings[name] = replace(given, parallel=option.cut.parallel(given.parallel))
            layouts[name] = option.cut.layout
            shapes[name] = RoleShape.of_role(
                settings[name], run.archs[name], option.cut.layout, on_gpu
            )
        for name, owner in sharing.items():
            settings[name] = replace(
                settings[owner], name=name, optimizer=None, lora=None, shares=owner
            )
        tp = next((one.rollout_tp for one in options.values() if one.rollout_tp), None)
        rollout = None
        if run.config.generates:
            first = next(iter(run.settings))
            rollout = rollout_shape(run.config, run.archs[first], on_gpu, tp)
        return Ledger(
            run.config,
            RunLayouts(
                run.num_ranks,
                layouts,
                () if tp is None else self._engines(num_ranks, tp),
                "contiguous",
                {},
                {},
                shared_bases(settings, layouts),
            ),
            run.hardware,
            shapes,
            rollout,
            settings,
        )

    def _engines(self, num_ranks: int, tp: int) -> tuple[tuple[int, ...], ...]:
        size = tp * self._run.config.rollout.pipeline_parallel
        return tuple(tuple(range(i, i + size)) for i in range(0, num_ranks, size))
