"""Move values between placements of a flow: facts by broadcast, columns from rank to rank."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Any

from verl_hpc.errors import FlowError
from verl_hpc.flow import Move, Mover, StepCancelled
from verl_hpc.runtime.control import Control
from verl_hpc.runtime.world import World
from verl_hpc.step.batch import Columns, Samples
from verl_hpc.step.placement import Placement
from verl_hpc.step.redistribute import redistribute


class Communicators:
    """Control planes (communicators) of sets of ranks, each made once, by every rank of the job.

    Args:
        world: the control plane of all ranks.
    """

    def __init__(self, world: Control) -> None:
        self._world = world
        self._known: dict[frozenset[int], Control] = {}

    def make(self, ranks: Iterable[int]) -> Control | None:
        """Make the control plane of `ranks`, in ascending order; None on other ranks. Every rank of
        the job calls it, in the same order."""
        wanted = frozenset(ranks)
        if len(wanted) == self._world.size:
            return self._world
        if wanted not in self._known:
            self._known[wanted] = self._world.split(int(self._world.rank in wanted))
        return self._known[wanted] if self._world.rank in wanted else None

    def of(self, ranks: Iterable[int]) -> Control:
        """Return an existing control plane over `ranks`, which must include this rank."""
        wanted = frozenset(ranks)
        return self._world if len(wanted) == self._world.size else self._known[wanted]


class Exchange(Mover):
    """Moves values between placements; the ranks of both take part.

    Args:
        world: this rank's place.
        places: placements by name.
        controls: those of every pair of placements.
    """

    def __init__(
        self, world: World, places: Mapping[str, Placement], controls: Communicators
    ) -> None:
        self._world, self._places, self._controls = world, places, controls
        self._meeting = cache(self._between)

    def move(self, move: Move, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """See `Mover`. Columns stay in place where both placements have every sample on the same
        ranks.

        Raises:
            FlowError: a value that is not shared is not `Columns`, a column is not in `COLUMNS`, or
                its shape differs from that.
        """
        source, target = self._places[move.source], self._places[move.target]
        control, root = self._meeting(source, target)
        # Where both have all ranks, these give a flow up together.
        if not (source.is_world and target.is_world) and control.any(False):
            raise StepCancelled
        if move.shared:
            mine = {name: values[name] for name in move.values} if source.leads else None
            values_here = control.broadcast(mine, root)
        else:
            values_here = self._columns(move, values, source, target, control, root)
        return values_here if target.is_here else {}

    def abandon(self, moves: Iterable[Move]) -> None:
        """See `Mover`."""
        for move in moves:
            source, target = self._places[move.source], self._places[move.target]
            if not (source.is_world and target.is_world):
                control, _ = self._meeting(source, target)
                control.any(True)

    def _columns(
        self,
        move: Move,
        values: Mapping[str, Any],
        source: Placement,
        target: Placement,
        control: Control,
        root: int,
    ) -> dict[str, Columns]:
        columns: dict[str, Columns] = {}
        assert move.index is not None, f"{move.values}: nothing says who has what of them"
        for name in move.values:
            mine = values.get(name) if source.is_here else None
            if mine is not None and not isinstance(mine, Columns):
                raise FlowError(
                    f"value {name!r}: a {type(mine).__name__} cannot move from {source.name} to "
                    f"{target.name}, as only Columns and shared values do; run the operator that "
                    f"takes it at {source.name}, or the one that gives it at {target.name}"
                )
            # Ranks that are only in the target need the names and widths to receive rows.
            if not set(target.ranks) <= set(source.ranks):
                held = None if mine is None else (list(mine.values), mine.widths)
                names, widths = control.broadcast(held, root)
                mine = mine or Columns([], {column: [] for column in names}, widths)
            assert mine is not None
            samples: Samples = values[move.index]
            mine.check(samples)
            owners = samples.owners
            # On every rank alike, so that none waits for a message.
            if source.groups == target.groups and owners[source.name] == owners[target.name]:
                columns[name] = mine.copy_to(target.device)
                continue
            columns[name] = redistribute(
                self._world,
                control,
                samples,
                mine,
                (source.name, source.groups),
                (target.name, target.groups),
                target.device,
            )
        return columns

    def _between(self, source: Placement, target: Placement) -> tuple[Control, int]:
        """Return the control plane of both, and the index in it of the source's first rank."""
        ranks: Sequence[int] = sorted({*source.ranks, *target.ranks})
        return self._controls.of(ranks), ranks.index(source.ranks[0])
