"""The memory ledger of a run: every phase on every rank, and the fullest rank of each.

Ranks that hold the same are counted once: a rank's class is its pipeline stage in each role's
layout, and its stage of its rollout engine, if it has one. So a run on thousands of ranks has a
dozen classes. Each class is represented by its first rank. Replicas differ slightly in the
optimizer state they own, by the padding between parameters: about a millionth of the model.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from verl_hpc.config.run import RunConfig
from verl_hpc.hardware.node import Hardware
from verl_hpc.layout.architecture import Architecture
from verl_hpc.placement.layouts import RunLayouts, run_layouts
from verl_hpc.planner.memory.phase import PHASES, Phase
from verl_hpc.planner.memory.planned_run import PlannedRun
from verl_hpc.planner.memory.rank import RankMemory
from verl_hpc.planner.memory.rollout import rollout_shape
from verl_hpc.planner.memory.transfer import counted_peers
from verl_hpc.planner.shape import RoleShape


@dataclass(frozen=True)
class Ledger(PlannedRun):
    """Memory of a run on some hardware."""

    def of_rank(self, rank: int) -> tuple[Phase, ...]:
        """All phases of one rank, in order."""
        return tuple(RankMemory(self, rank).phases())

    @cached_property
    def classes(self) -> Mapping[tuple[int, ...], int]:
        """The first rank of each class of ranks that hold the same."""
        first_of: dict[tuple[int, ...], int] = {}
        layouts = [self.layouts.train[name] for name in self.shapes]
        spans = [(one.first_rank, one.num_ranks, one.tp * one.dp) for one in layouts]
        for rank in self._ranks_to_look_at():
            stages = [
                (rank - first) // span if 0 <= rank - first < size else -1
                for first, size, span in spans
            ]
            first_of.setdefault((*stages, self.engine_stages.get(rank, -1)), rank)
        return first_of

    def _ranks_to_look_at(self) -> Iterator[int]:
        """Yield ranks in ascending order, the first of each class among them: after each rank where
        a role's stage or the engines begin, only as many as one engine has, since the following
        ones repeat them."""
        engines, engine = self.layouts.replicas, 1
        starts = {0, self.layouts.num_ranks}
        for one in (self.layouts.train[name] for name in self.shapes):
            starts |= {one.first_rank + stage * one.tp * one.dp for stage in range(one.pp + 1)}
        if engines:
            engine = len(engines[0])
            starts |= {min(engines[0]), max(engines[-1]) + 1}
        for start, end in pairwise(sorted(starts)):
            yield from range(start, min(end, start + engine))

    @cached_property
    def all_phases(self) -> tuple[Phase, ...]:
        """Each phase of each role, on its fullest rank."""
        fullest: dict[tuple[str, str], Phase] = {}
        for rank in self.classes.values():
            for phase in self.of_rank(rank):
                fullest[phase.key] = _fuller(fullest.get(phase.key), phase)
        return tuple(sorted(fullest.values(), key=lambda phase: PHASES.index(phase.name)))

    @cached_property
    def phases(self) -> tuple[Phase, ...]:
        """The fullest phase of each name."""
        fullest: dict[str, Phase] = {}
        for phase in self.all_phases:
            fullest[phase.name] = _fuller(fullest.get(phase.name), phase)
        return tuple(fullest.values())

    @property
    def fits(self) -> bool:
        return all(phase.fits for phase in self.all_phases)

    @property
    def first_misfit(self) -> Phase | None:
        """The first phase that does not fit."""
        return next((phase for phase in self.all_phases if not phase.fits), None)

    @property
    def least_room_bytes(self) -> int | None:
        """Least free memory on any device in any phase; None without a limit."""
        rooms = [phase.room_bytes for phase in self.all_phases if phase.room_bytes is not None]
        return min(rooms, default=None)


def _fuller(one: Phase | None, other: Phase) -> Phase:
    if one is None or (one.fits and not other.fits):
        return other
    if one.fits != other.fits:
        return one
    return max(one, other, key=lambda phase: phase.device_bytes)


def ledger(
    config: RunConfig,
    archs: Mapping[str, Architecture] | Architecture,
    layouts: RunLayouts,
    hardware: Hardware,
    counts_peers: bool = False,
) -> Ledger:
    """Predict the memory of a run.

    Args:
        config: of the run.
        archs: of every role's model by its name, or one for all.
        layouts: of the run on its ranks (`placement.layouts.run_layouts`).
        hardware: of the nodes.
        counts_peers: plan the transfer of weights, where that is quick, and count its peers;
            otherwise assume a number. A search, which checks parts of a run, cannot plan it.
    """
    settings, on_gpu = config.role_settings, hardware.kind.is_gpu
    by_role = dict.fromkeys(settings, archs) if isinstance(archs, Architecture) else archs
    shapes = {
        name: RoleShape.of_role(role, by_role[name], layouts.train[name], on_gpu)
        for name, role in settings.items()
        if role.shares is None
    }
    rollout = peers = None
    if config.generates:
        first = by_role[next(iter(settings))]
        rollout = rollout_shape(config, first, on_gpu)
        if counts_peers:
            peers = counted_peers(config, first, layouts, hardware)
    return Ledger(config, layouts, hardware, shapes, rollout, settings, peers)


def ledger_on(
    config: RunConfig,
    archs: Mapping[str, Architecture],
    num_ranks: int,
    hardware: Hardware,
    counts_peers: bool = False,
) -> Ledger:
    """Lay a run out on so many ranks as the run does, and predict its memory.

    Raises:
        VerlHpcError: the ranks do not match the sizes, or a model cannot be cut that way.
    """
    first, per_node = archs[next(iter(config.role_settings))], hardware.ranks_per_node
    layouts = run_layouts(config, first, num_ranks, archs=archs, ranks_per_node=per_node)
    return ledger(config, archs, layouts, hardware, counts_peers)
