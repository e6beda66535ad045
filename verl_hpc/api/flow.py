"""Flows as verl's tutorials write them, compiled by `verl_hpc.flow`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, Self

from verl_hpc import flow
from verl_hpc.config.arguments import checked
from verl_hpc.errors import FlowError
from verl_hpc.flow import Operator as Operator


class Node(Protocol):
    """An operator that is an object: it knows its name, its inputs and outputs."""

    name: str

    def operator(self, earlier: Sequence[Operator | Node]) -> Operator:
        """Return its operator in a flow that has these before it."""
        ...


class DataFlow(flow.DataFlow):
    """Operators, one after the other or by the names of their values.

    A parameter takes the value of its own name. A function with a single parameter, others with
    defaults aside, that names no earlier value takes what the operator before it gives; a
    parameter of the first operator that nothing gives is asked of `pipeline.run(name=...)`.

    Args:
        name: for pictures and messages.
        inputs: further values that `pipeline.run` is given.
    """

    @checked
    def __init__(self, name: str = "flow", inputs: Sequence[str] = ()) -> None:
        super().__init__(name, inputs)

    def add_operator(self, operator: Operator | Node) -> Self:
        """Append an operator or a node; adding one changes no other.

        Raises:
            FlowError: it is neither, or has no name.
        """
        if not isinstance(operator, Operator) and not callable(getattr(operator, "operator", None)):
            raise FlowError(
                f"flow {self.name!r}: add_operator got {type(operator).__name__}; expected "
                "Operator(name, func), or a node such as RewardNode"
            )
        if not hasattr(operator, "name"):
            raise FlowError(
                f"flow {self.name!r}: {type(operator).__name__} has no name; call "
                "super().__init__() in its own __init__"
            )
        self.operators.append(operator)  # type: ignore[arg-type]
        return self

    def compile(self, placements: Mapping[str, Sequence[int]] | None = None) -> flow.Pipeline:
        """Check the graph and order it: see `verl_hpc.flow.DataFlow.compile`.

        Raises:
            FlowError: also where a flow has no operators.
        """
        if not self.operators:
            raise FlowError(f"flow {self.name!r} has no operators; add some before compile()")
        bound = flow.DataFlow(self.name, self.inputs)
        known = set(self.inputs)
        for number, node in enumerate(self.operators):
            operator = (
                node if isinstance(node, Operator) else node.operator(self.operators[:number])
            )
            if bound.operators:
                operator = _chained(operator, known, bound.operators[-1])
            else:
                missing = [v for v in operator.needs(known).values() if v not in known]
                bound.inputs = (*self.inputs, *missing)
            known |= {*bound.inputs, *operator.gives}
            bound.operators.append(operator)
        return bound.compile(placements)


def _chained(operator: Operator, known: set[str], before: Operator) -> Operator:
    """Bind the value before an operator to its only parameter, where that names none."""
    parameters = [p.name for p in operator.parameters.values() if p.default is p.empty]
    if operator.inputs or len(parameters) != 1 or len(before.gives) != 1 or parameters[0] in known:
        return operator
    return replace(operator, inputs={parameters[0]: before.gives[0]})
