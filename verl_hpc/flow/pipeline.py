"""A compiled data flow: the schedule every rank follows, running only its own operators."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import FlowError
from verl_hpc.flow.operator import Operator


@dataclass(frozen=True)
class Run:
    """Call an operator."""

    operator: Operator
    needs: Mapping[str, str]
    """The value of each parameter."""

    @cached_property
    def name(self) -> str:
        return self.operator.name

    @property
    def values(self) -> list[str]:
        """Values that the operator needs."""
        return list(self.needs.values())

    def call(self, values: Values, place: str) -> dict[str, Any]:
        """Call the operator's function with values as they are at a placement; return its outputs
        by name. Positional-only parameters are passed by position.

        Raises:
            FlowError: the operator gives another number of outputs than it declares.
        """
        operator = self.operator
        first, arguments = [], {}
        for name, value in self.needs.items():
            argument = values.at(place, value)
            if name in operator.positional:
                first.append(argument)
            else:
                arguments[name] = argument
        result = operator.func(*first, **arguments)
        names = operator.gives
        if len(names) == 1:
            return {names[0]: result}
        results = () if result is None and not names else result
        if not isinstance(results, tuple) or len(results) != len(names):
            raise FlowError(
                f"operator {operator.name!r} gives {type(result).__name__}, expected a tuple of "
                f"{len(names)}: {', '.join(names)}"
            )
        return dict(zip(names, results, strict=True))


@dataclass(frozen=True)
class Move:
    """Bring values from where they were made to where they are needed."""

    values: tuple[str, ...]
    source: str
    target: str
    shared: bool = False
    """Whether all ranks of the source have the same values; otherwise each has some samples."""
    index: str | None = None
    """The shared value that says which rank has which samples, unless the values are shared."""

    @cached_property
    def name(self) -> str:
        return f"{self.source} to {self.target}"


class StepCancelled(Exception):  # noqa: N818 (not an error)
    """The ranks cancel this run of the flow; what it has changed so far stays."""


class Mover:
    """Carries values between placements; this one leaves them where they are."""

    def move(self, move: Move, values: Mapping[str, Any]) -> Mapping[str, Any]:
        """The values as this rank has them at the target; nothing if it does not belong to it.

        Args:
            move: what to carry.
            values: those of the move, and its index, as this rank has them at the source, else
                anywhere.

        Raises:
            StepCancelled: a rank that would take part has given the flow up.
        """
        return {name: values[name] for name in move.values}

    def abandon(self, moves: Iterable[Move]) -> None:
        """Notify the other ranks of moves that this rank will not make, so that none waits for it;
        they raise StepCancelled there."""


STAY = Mover()


@dataclass(frozen=True)
class Pipeline:
    """The order of a flow's operators, with the moves between placements made explicit."""

    name: str
    inputs: tuple[str, ...]
    schedule: tuple[Run | Move, ...]
    placements: Mapping[str, Sequence[int]] | None = None
    _by_rank: dict[int, list[tuple[Run | Move, str]]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    def for_rank(self, rank: int) -> Sequence[tuple[Run | Move, str]]:
        """The part of the schedule that `rank` takes part in, in order, each item with the
        placement in which it does; for a move the target, if the rank is in both placements.

        Operators on disjoint ranks are in each other's schedule only by the moves between them.
        """
        if rank not in self._by_rank:
            known = self.placements
            here = [
                (item, [p for p in places_of(item) if known is None or rank in known[p]])
                for item in self.schedule
            ]
            self._by_rank[rank] = [(item, places[-1]) for item, places in here if places]
        return self._by_rank[rank]

    def split(self, first: Collection[str]) -> tuple[Pipeline, Pipeline]:
        """Split into two pipelines that run one after the other: the operators of `first`, and the
        others, which begin with the moves of what the first ones made.

        Args:
            first: names of operators, with all that give what they need (`needs`).
        """
        makes = {value for op in self.operators if op.name in first for value in op.gives}
        wanted = self._wanted_by(first)
        early: list[Run | Move] = []
        given: list[Run | Move] = []
        late: list[Run | Move] = []
        for item in self.schedule:
            if isinstance(item, Run):
                (early if item.name in first else late).append(item)
                continue
            known = makes if item.index is None or item.index in makes else ()
            now = tuple(v for v in item.values if (v, item.target) in wanted)
            ready = tuple(v for v in item.values if v in known and v not in now)
            rest = tuple(v for v in item.values if v not in {*now, *ready})
            for part, values in ((early, now), (given, ready), (late, rest)):
                if values:
                    part.append(replace(item, values=values))
        return replace(self, schedule=tuple(early)), replace(self, schedule=(*given, *late))

    def _wanted_by(self, names: Collection[str]) -> set[tuple[str, str]]:
        """Values, and the placements where some operators need them."""
        runs = [run for run in self.runs if run.name in names]
        wanted = {(value, run.operator.placement) for run in runs for value in run.values}
        for move in reversed(self.moves):
            if move.index is not None and any((v, move.target) in wanted for v in move.values):
                wanted |= {(move.index, move.source), (move.index, move.target)}
        return wanted

    def needs(self, run: Run) -> set[str]:
        """Values that must exist before an operator can run: its inputs, and the indices that say
        which rank has which samples of them."""
        place = run.operator.placement
        moves = [
            m for m in self.moves if m.target == place and not {*m.values}.isdisjoint(run.values)
        ]
        return {*run.values, *(move.index for move in moves if move.index is not None)}

    @cached_property
    def before_changes(self) -> tuple[Pipeline, Pipeline]:
        """Two pipelines that run one after the other: on each rank what comes before the first
        change to what a checkpoint holds, there or on ranks that it waits for, and the rest."""
        first: list[Run | Move] = []
        rest: list[Run | Move] = []
        changed: set[int] = set()
        for item in self.schedule:
            ranks = self._ranks_of(item)
            changes = isinstance(item, Run) and item.operator.changes_state
            if changes or not changed.isdisjoint(ranks):
                changed |= ranks
                rest.append(item)
            else:
                first.append(item)
        return replace(self, schedule=tuple(first)), replace(self, schedule=tuple(rest))

    def run(
        self,
        rank: int = 0,
        mover: Mover = STAY,
        enter: Callable[[str, str], object] = lambda *_: None,
        **inputs: Any,
    ) -> dict[str, Any]:
        """Run this rank's part of the flow.

        Args:
            rank: this rank.
            mover: carries values between placements; without one they stay.
            enter: called before each operator or move with its name and the placement in which
                this rank takes part in it.
            inputs: the flow's inputs.

        Returns:
            Every value this rank has at the end, by name: as it was made, else as it came.

        Raises:
            FlowError: an input is missing or unknown, or an operator gives another number of
                outputs than it declares.
            StepCancelled: an operator raised it, here or on ranks that this one would have met at a
                move. What they and others have done stays done.
        """
        return self.resume(self.begin(**inputs), rank, mover, enter).made

    def begin(self, **inputs: Any) -> Values:
        """Create the values that a run of the flow starts from.

        Raises:
            FlowError: an input is missing, or nothing asks for it.
        """
        missing = set(self.inputs).difference(inputs)
        if missing:
            names = sorted(missing, key=self.inputs.index)
            raise FlowError(f"flow {self.name!r} runs with {', '.join(names)} missing")
        for name in inputs:
            if name not in self.inputs:
                raise FlowError(
                    f"flow {self.name!r} has no input {name!r}; "
                    f"{near_or_all(name, self.inputs, 'its inputs')}"
                )
        return Values(inputs)

    def resume(
        self,
        values: Values,
        rank: int = 0,
        mover: Mover = STAY,
        enter: Callable[[str, str], object] = lambda *_: None,
    ) -> Values:
        """Run like `run`, from values that `begin`, or the first of two pipelines, left."""
        mine = self.for_rank(rank)
        for number, (item, place) in enumerate(mine):
            try:
                enter(item.name, place)
                if isinstance(item, Run):
                    values.put(place, item.call(values, place))
                else:
                    values.put(item.target, mover.move(item, values.known(item)))
            except StepCancelled:
                mover.abandon(item for item, _ in mine[number + 1 :] if isinstance(item, Move))
                raise
        return values

    @cached_property
    def changed(self) -> Mapping[str, bool]:
        """Whether an operator may come after a change of what a checkpoint holds, or makes one
        (`before_changes`), by its name."""
        before = {op.name for op in self.before_changes[0].operators}
        return {op.name: op.name not in before for op in self.operators}

    @property
    def operators(self) -> list[Operator]:
        """Operators, in order."""
        return [run.operator for run in self.runs]

    @property
    def runs(self) -> list[Run]:
        """Operators with their inputs, in order."""
        return [item for item in self.schedule if isinstance(item, Run)]

    @property
    def moves(self) -> list[Move]:
        """Moves, in order."""
        return [item for item in self.schedule if isinstance(item, Move)]

    def _ranks_of(self, item: Run | Move) -> set[int]:
        """Ranks that take part in an item; of a flow without placements this one."""
        if self.placements is None:
            return {0}
        return {rank for place in places_of(item) for rank in self.placements[place]}


def places_of(item: Run | Move) -> tuple[str, ...]:
    """Placements whose ranks take part in an item."""
    return (item.operator.placement,) if isinstance(item, Run) else (item.source, item.target)


class Values:
    """Values of a rank by name and placement, since samples are reassigned for every placement."""

    def __init__(self, inputs: Mapping[str, Any]) -> None:
        self.made = dict(inputs)
        """Values by name, as they were made, else as they came."""
        self._placed: dict[tuple[str, str], Any] = {}

    def put(self, place: str, values: Mapping[str, Any]) -> None:
        for name, value in values.items():
            self.made.setdefault(name, value)
            self._placed[name, place] = value

    def at(self, place: str, name: str) -> Any:
        """Return a value as it is at a placement, else as it was made."""
        return self._placed.get((name, place), self.made[name])

    def known(self, move: Move) -> dict[str, Any]:
        """Return a move's values and their index as they are at its source, if this rank has
        them."""
        names = (*move.values, move.index)
        return {n: self.at(move.source, n) for n in names if n is not None and n in self.made}
