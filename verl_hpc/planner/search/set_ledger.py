"""What the memory ledger says of one set of roles on its ranks, before a run is laid out.

Sets share no ranks, so that a run fits where each of its sets does.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from verl_hpc.config.roles import RoleSettings
from verl_hpc.config.run import RunConfig
from verl_hpc.layout.architecture import Architecture
from verl_hpc.planner.hardware import Hardware
from verl_hpc.planner.layouts import RunLayouts
from verl_hpc.planner.memory.ledger import Ledger
from verl_hpc.planner.memory.rollout import RolloutShape
from verl_hpc.planner.memory.shape import RoleShape
from verl_hpc.planner.search.pareto_front import Option


def rollout_shape(
    config: RunConfig, arch: Architecture, tp: int, hardware: Hardware
) -> RolloutShape:
    """Of an engine of `tp` ranks, all else as configured."""
    rollout = config.rollout.model_copy(update={"tensor_parallel": tp})
    dtype = config.rollout.dtype or config.model.dtype
    return RolloutShape.of(arch, rollout, dtype, hardware.kind.is_gpu, config.longest_response)


class SetLedgers:
    """Of a run whose layouts are searched.

    Args:
        config: of the run.
        settings: of every role; none shares another's engine.
        archs: of every role.
        hardware: of the nodes.
        num_ranks: of the run.
        spare_bytes: to be left free on every device.
    """

    def __init__(
        self,
        config: RunConfig,
        settings: Mapping[str, RoleSettings],
        archs: Mapping[str, Architecture],
        hardware: Hardware,
        num_ranks: int,
        spare_bytes: int,
    ) -> None:
        self._config, self._settings, self._archs = config, settings, archs
        self._hardware, self._num_ranks, self._spare = hardware, num_ranks, spare_bytes
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
        first, *others = (rank for rank in ledger.classes.values() if rank < num_ranks)
        # The last ones refuse most often, behind the first.
        for rank in (first, *reversed(others)):
            for phase in ledger.of_rank(rank):
                room = phase.room_bytes
                if not phase.fits or (room is not None and room < self._spare):
                    return False
        return True

    def _ledger(
        self, num_ranks: int, options: Mapping[str, Option], sharing: Mapping[str, str]
    ) -> Ledger:
        first = next(iter(self._settings))
        settings, shapes, layouts = {}, {}, {}
        for name, option in options.items():
            if option.cut is None:
                continue
            given = self._settings[name]
            settings[name] = replace(given, parallel=option.cut.parallel(given.parallel))
            layouts[name] = option.cut.layout
            shapes[name] = RoleShape.of_role(
                settings[name], self._archs[name], option.cut.layout, self._hardware.kind.is_gpu
            )
        for name, owner in sharing.items():
            settings[name] = replace(settings[owner], name=name, optimizer=None, shares=owner)
        tp = next((one.rollout_tp for one in options.values() if one.rollout_tp), None)
        rollout = None
        if self._config.generates:
            size = tp or self._config.rollout.tensor_parallel
            rollout = rollout_shape(self._config, self._archs[first], size, self._hardware)
        return Ledger(
            self._config,
            RunLayouts(
                self._num_ranks,
                layouts,
                () if tp is None else self._engines(num_ranks, tp),
                "contiguous",
                {},
                {},
            ),
            self._hardware,
            shapes,
            rollout,
            settings,
        )

    def _engines(self, num_ranks: int, tp: int) -> tuple[tuple[int, ...], ...]:
        size = tp * self._config.rollout.pipeline_parallel
        return tuple(tuple(range(i, i + size)) for i in range(0, num_ranks, size))
