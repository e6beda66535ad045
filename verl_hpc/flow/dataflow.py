"""A graph of operators, declared, checked, and put in an order.

Adding or removing an operator touches no other one: edges come from the names of values.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from graphlib import CycleError, TopologicalSorter
from typing import Any

from verl_hpc.config.explain import near_or_all
from verl_hpc.errors import FlowError
from verl_hpc.flow.operator import EVERYWHERE, Operator
from verl_hpc.flow.pipeline import Move, Pipeline, Run


class DataFlow:
    """Operators and the values that flow between them.

    Args:
        name: for pictures and messages.
        inputs: values that the caller of the compiled pipeline provides; the same on all ranks.
    """

    def __init__(self, name: str = "flow", inputs: Sequence[str] = ()) -> None:
        self.name = name
        self.inputs = tuple(inputs)
        self.operators: list[Operator] = []

    def add_operator(self, operator: Operator) -> DataFlow:
        """Append an operator; its position only matters where names leave the order open."""
        self.operators.append(operator)
        return self

    def add(self, name: str, func: Callable[..., Any], **settings: Any) -> DataFlow:
        """`add_operator(Operator(name, func, ...))`."""
        return self.add_operator(Operator(name, func, **settings))

    def without(self, name: str) -> DataFlow:
        """The flow minus one operator.

        Raises:
            FlowError: there is none of that name.
        """
        if name not in {op.name for op in self.operators}:
            raise FlowError(f"flow {self.name!r} has no operator {name!r}")
        rest = DataFlow(self.name, self.inputs)
        rest.operators = [op for op in self.operators if op.name != name]
        return rest

    def compile(self, placements: Mapping[str, Sequence[int]] | None = None) -> Pipeline:
        """Check the graph and order it.

        Args:
            placements: ranks of each placement label; None runs everything here.

        Raises:
            FlowError: two operators or values of one name, an input without a producer, a cycle,
                or a placement that is not known.
        """
        operators = [self._with_inputs(i) for i in range(len(self.operators))]
        givers = self._givers(operators)
        self._check_inputs(operators, givers)
        ordered = self._order(operators, givers)
        if placements is not None:
            self._check_placements(ordered, placements)
        schedule = _schedule(ordered, givers, placements or {})
        return Pipeline(self.name, self.inputs, tuple(schedule), placements)

    def _with_inputs(self, index: int) -> Operator:
        """The operator with its inputs named.

        A function of one parameter that no value is called after takes what the operator before it
        gives (a chain), unless the name looks like a misspelt value; others bind by name.
        """
        operator = self.operators[index]
        if operator.inputs is not None:
            return replace(operator, inputs=tuple(operator.inputs))
        names = operator.parameters()
        known = {n for op in self.operators for n in op.gives} | set(self.inputs)
        if len(names) == 1 and not difflib.get_close_matches(names[0], known, cutoff=0.8):
            before = self.operators[index - 1].gives if index else self.inputs
            if len(before) == 1:
                names = before
        return replace(operator, inputs=names)

    def _givers(self, operators: Iterable[Operator]) -> dict[str, Operator]:
        givers: dict[str, Operator] = {}
        seen: set[str] = set()
        for operator in operators:
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
                        f"is not one of its outputs; {near_or_all(value, operator.gives)}"
                    )
        return givers

    def _check_inputs(self, operators: Sequence[Operator], givers: Mapping[str, Operator]) -> None:
        names = {op.name for op in operators}
        for operator in operators:
            for value in operator.inputs or ():
                if value not in givers and value not in self.inputs:
                    raise FlowError(
                        f"flow {self.name!r}: operator {operator.name!r} needs {value!r}, which "
                        f"nothing produces; {near_or_all(value, [*givers, *self.inputs])}"
                    )
            for other in operator.after:
                if other not in names:
                    raise FlowError(
                        f"flow {self.name!r}: operator {operator.name!r} comes after {other!r}, "
                        f"which does not exist; {near_or_all(other, sorted(names))}"
                    )

    def _order(
        self, operators: Sequence[Operator], givers: Mapping[str, Operator]
    ) -> list[Operator]:
        """Topological order; where it is open, the order of declaration."""
        by_name = {op.name: op for op in operators}
        position = {op.name: i for i, op in enumerate(operators)}
        graph: TopologicalSorter[str] = TopologicalSorter()
        for op in operators:
            needed = [givers[v].name for v in op.inputs or () if v in givers]
            graph.add(op.name, *needed, *op.after)
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

    def _check_placements(
        self, operators: Sequence[Operator], placements: Mapping[str, Sequence[int]]
    ) -> None:
        for operator in operators:
            if operator.placement != EVERYWHERE and operator.placement not in placements:
                raise FlowError(
                    f"flow {self.name!r}: operator {operator.name!r} runs on "
                    f"{operator.placement!r}, which is no placement"
                    f"; {near_or_all(operator.placement, placements)}"
                )


def _schedule(
    operators: Sequence[Operator],
    givers: Mapping[str, Operator],
    ranks: Mapping[str, Sequence[int]],
) -> Iterable[Run | Move]:
    """Operators in order, each behind the moves of values that its ranks do not have yet."""

    def has(place: str, value: str) -> bool:
        giver = givers[value]
        if giver.placement in (place, EVERYWHERE):
            return True
        # The same on all ranks of its placement: there is nothing to deal out anew.
        here, there = set(ranks.get(place, ())), set(ranks.get(giver.placement, ()))
        return value in giver.shared and here <= there

    moved: set[tuple[str, str]] = set()
    for operator in operators:
        here = operator.placement
        missing: dict[str, list[str]] = {}
        for value in operator.inputs or ():
            if value in givers and not has(here, value) and (value, here) not in moved:
                missing.setdefault(givers[value].placement, []).append(value)
                moved.add((value, here))
        for source, values in missing.items():
            yield Move(tuple(values), source, here)
        yield Run(operator)
