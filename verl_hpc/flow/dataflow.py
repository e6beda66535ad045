"""A graph of operators, declared, checked, and put in an order.

Adding or removing an operator touches no other one: edges come from the names of values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from typing import Any, Self

from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import FlowError
from verl_hpc.flow.operator import EVERYWHERE, Operator
from verl_hpc.flow.pipeline import Move, Pipeline, Run, places_of


class DataFlow:
    """Operators and the values that flow between them.

    Args:
        name: for pictures and messages.
        inputs: values that the caller of the compiled pipeline provides; the same on all ranks.
        index: the shared value that says which rank has which samples of all other values under
            every placement, except of operators that name another; it exists before any of them
            moves.
    """

    def __init__(self, name: str, inputs: Sequence[str] = (), index: str | None = None) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.index = index
        self.operators: list[Operator] = []

    def add(self, name: str, func: Callable[..., Any], **settings: Any) -> Self:
        """Append `Operator(name, func, ...)`; its position only matters where names leave the
        order open."""
        self.operators.append(Operator(name, func, **settings))
        return self

    def without(self, *names: str) -> Self:
        """The flow minus some operators.

        Raises:
            FlowError: no operator has such a name.
        """
        known = {op.name for op in self.operators}
        for name in names:
            if name not in known:
                raise FlowError(
                    f"flow {self.name!r} has no operator {name!r}; {near_or_all(name, known)}"
                )
        rest = copy.copy(self)
        rest.operators = [op for op in self.operators if op.name not in names]
        return rest

    def compile(self, placements: Mapping[str, Sequence[int]] | None = None) -> Pipeline:
        """Check the graph and order it.

        Args:
            placements: ranks of each placement label; None runs everything here.

        Raises:
            FlowError: two operators or values of one name, an input without a source, a cycle, or
                a placement that is not known.
        """
        givers = self._givers()
        needs = {op.name: op.needs({*givers, *self.inputs}) for op in self.operators}
        self._check_inputs(givers, needs)
        ordered = [Run(op, needs[op.name]) for op in self._order(givers, needs)]
        if placements is not None:
            self._check_placements(placements)
        schedule = _Schedule(givers, placements or {}, self.index).of(ordered)
        return Pipeline(self.name, self.inputs, tuple(schedule), placements)

    def _givers(self) -> dict[str, Operator]:
        # Names of operators and of values must be unique, and shared values must be given.
        givers: dict[str, Operator] = {}
        seen: set[str] = set()
        for operator in self.operators:
            if operator.name in seen:
                raise FlowError(f"flow {self.name!r}: two operators are called {operator.name!r}")
            seen.add(operator.name)
            for value in operator.gives:
                if value in givers or value in self.inputs:
                    giver = givers[value].name if value in givers else "the flow's inputs"
                    raise FlowError(
                        f"flow {self.name!r}: {value!r} is given by {giver} and by "
                        f"{operator.name}; rename one of them"
                    )
                givers[value] = operator
            for value in operator.shared:
                if value not in operator.gives:
                    raise FlowError(
                        f"flow {self.name!r}: operator {operator.name!r} shares {value!r}, which "
                        f"it does not give; {near_or_all(value, operator.gives)}"
                    )
        return givers

    def _check_inputs(
        self, givers: Mapping[str, Operator], needs: Mapping[str, Mapping[str, str]]
    ) -> None:
        for name, values in needs.items():
            for value in values.values():
                if value not in givers and value not in self.inputs:
                    raise FlowError(
                        f"flow {self.name!r}: operator {name!r} needs {value!r}, which "
                        f"nobody gives; {near_or_all(value, [*givers, *self.inputs])}"
                    )

    def _order(
        self, givers: Mapping[str, Operator], needs: Mapping[str, Mapping[str, str]]
    ) -> list[Operator]:
        """Topological order; where it is open, the order of declaration."""
        # An operator follows those that give its values, and the indices of these values.
        by_name = {op.name: op for op in self.operators}
        position = {op.name: i for i, op in enumerate(self.operators)}
        graph: TopologicalSorter[str] = TopologicalSorter()
        for name, values in needs.items():
            given = [value for value in values.values() if value in givers]
            graph.add(name, *(givers[value].name for value in given))
            graph.add(name, *self._givers_of_indices(by_name[name], [givers[v] for v in given]))
        try:
            graph.prepare()
        except CycleError as error:
            circle = " -> ".join(reversed(error.args[1]))
            raise FlowError(f"flow {self.name!r}: a cycle: {circle}") from None
        ordered: list[Operator] = []
        ready: list[str] = []
        while graph.is_active():
            ready = sorted([*ready, *graph.get_ready()], key=position.__getitem__)
            name = ready.pop(0)
            ordered.append(by_name[name])
            graph.done(name)
        return ordered

    def _givers_of_indices(self, operator: Operator, givers: Sequence[Operator]) -> Iterator[str]:
        """Yield the operators that give the indices of values from other placements: which rank has
        which samples."""
        by_value = {value: op.name for op in self.operators for value in op.gives}
        for giver in givers:
            index = giver.index or self.index
            is_split = not set(giver.gives) <= set(giver.shared)
            if is_split and giver.placement != operator.placement and index in by_value:
                yield by_value[index]

    def _check_placements(self, placements: Collection[str]) -> None:
        for operator in self.operators:
            if operator.placement not in placements:
                raise FlowError(
                    f"flow {self.name!r}: operator {operator.name!r} runs on "
                    f"{operator.placement!r}, which is not a placement"
                    f"; {near_or_all(operator.placement, placements)}"
                )


class _Schedule:
    """Operators in order, and the moves of values that their ranks do not have yet.

    A move comes as early as it can without delaying an operator on its target that does not need
    it, so that ranks that give a value send it before they run their next operator.
    """

    def __init__(
        self, givers: Mapping[str, Operator], ranks: Mapping[str, Sequence[int]], index: str | None
    ) -> None:
        self._givers, self._index = givers, index
        self._ranks = {place: frozenset(members) for place, members in ranks.items()}
        self._moved: set[tuple[str, str]] = set()
        self._items: list[Run | Move] = []

    def of(self, runs: Sequence[Run]) -> list[Run | Move]:
        for run in runs:
            place = run.operator.placement
            missing = [v for v in run.values if self._lacks(place, v)]
            alike = [v for v in missing if v in self._givers[v].shared]
            assigned = [v for v in missing if v not in alike]
            for value in assigned:
                index = self._index_of(value)
                if index is not None:
                    self._bring([index], self._givers[value].placement, shared=True)
                    alike += [index] * (index not in alike)
            self._bring(alike, place, shared=True)
            self._bring(assigned, place, shared=False)
            self._items.append(run)
        return self._items

    def _bring(self, values: Sequence[str], target: str, shared: bool) -> None:
        by_source: dict[tuple[str, str | None], list[str]] = {}
        for value in values:
            if self._lacks(target, value):
                index = None if shared else self._index_of(value)
                by_source.setdefault((self._givers[value].placement, index), []).append(value)
                self._moved.add((value, target))
        for (source, index), names in by_source.items():
            move = Move(tuple(names), source, target, shared, index)
            self._items.insert(self._earliest(move), move)

    def _index_of(self, value: str) -> str | None:
        return self._givers[value].index or self._index

    def _earliest(self, move: Move) -> int:
        """Earliest position of a move: after items in which its target takes part, operators that
        give its values, and moves that bring the index of these values to its source."""
        target = self._ranks.get(move.target, frozenset())
        for position in range(len(self._items), 0, -1):
            item = self._items[position - 1]
            gives = isinstance(item, Run) and set(item.operator.gives) & {*move.values, move.index}
            meets = any(target & self._ranks.get(place, frozenset()) for place in places_of(item))
            tells = (
                isinstance(item, Move) and item.target == move.source and move.index in item.values
            )
            if gives or meets or tells:
                return position
        return 0

    def _lacks(self, place: str, value: str) -> bool:
        if value not in self._givers or (value, place) in self._moved:
            return False
        giver = self._givers[value]
        if giver.placement in (place, EVERYWHERE):
            return False
        # A shared value is equal on all ranks of its placement, so nothing is reassigned.
        none: frozenset[int] = frozenset()
        here, there = self._ranks.get(place, none), self._ranks.get(giver.placement, none)
        return not (value in giver.shared and here <= there)
