"""A compiled data flow: the schedule every rank follows, running only its own operators."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from verl_hpc.errors import FlowError
from verl_hpc.flow.operator import EVERYWHERE, Operator


@dataclass(frozen=True)
class Run:
    """Call an operator."""

    operator: Operator


@dataclass(frozen=True)
class Move:
    """Bring values from where they were made to where they are needed."""

    values: tuple[str, ...]
    source: str
    target: str


Mover = Callable[[Move, Mapping[str, Any]], Mapping[str, Any]]
"""(what to move, values on this rank) to the values as this rank has them afterwards."""


def _stay(move: Move, values: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: values[name] for name in move.values}


@dataclass(frozen=True)
class Pipeline:
    """The order of a flow's operators, with the moves between placements made explicit."""

    name: str
    inputs: tuple[str, ...]
    schedule: tuple[Run | Move, ...]
    placements: Mapping[str, Sequence[int]] | None = None

    def for_rank(self, rank: int) -> Iterator[Run | Move]:
        """The part of the schedule that `rank` takes part in, in order.

        Operators on disjoint ranks are in each other's schedule only by the moves between them.
        The trainer places all its operators on all ranks.
        """
        for item in self.schedule:
            if isinstance(item, Run):
                places = [item.operator.placement]
            else:
                places = [item.source, item.target]
            if any(self._has(place, rank) for place in places):
                yield item

    def run(
        self,
        rank: int = 0,
        mover: Mover = _stay,
        enter: Callable[[str], object] = lambda _: None,
        **inputs: Any,
    ) -> dict[str, Any]:
        """Run this rank's part of the flow.

        Args:
            rank: this rank.
            mover: carries values between placements; without one they stay.
            enter: told the name of each operator or move before it starts.
            inputs: the flow's inputs.

        Returns:
            Every value this rank has at the end, by name.

        Raises:
            FlowError: an input is missing, or an operator gives another number of outputs than it
                declares.
        """
        missing = [name for name in self.inputs if name not in inputs]
        if missing:
            raise FlowError(f"flow {self.name!r} runs with {', '.join(missing)} missing")
        values = dict(inputs)
        for item in self.for_rank(rank):
            if isinstance(item, Move):
                enter(f"{item.source} to {item.target}")
                values |= mover(item, values)
            else:
                enter(item.operator.name)
                values |= _call(item.operator, values)
        return values

    def changes_state(self, name: str) -> bool:
        """Whether the operator of that name does."""
        operators = (item.operator for item in self.schedule if isinstance(item, Run))
        return any(op.changes_state for op in operators if op.name == name)

    def _has(self, place: str, rank: int) -> bool:
        if place == EVERYWHERE or self.placements is None:
            return True
        return rank in self.placements[place]

    def as_text(self) -> str:
        """One line an operator: where, what it needs, what it gives."""
        lines = [f"{self.name}({', '.join(self.inputs)})"]
        for item in self.schedule:
            if isinstance(item, Move):
                lines.append(f"  move  {', '.join(item.values)}: {item.source} to {item.target}")
                continue
            op = item.operator
            needs = ", ".join(op.inputs or ()) or "-"
            gives = ", ".join(op.gives) or "-"
            lines.append(f"  {op.placement:<10} {op.name:<16} {needs} => {gives}")
        return "\n".join(lines)

    def as_mermaid(self) -> str:
        """A flowchart for Markdown: operators by placement, values on the edges."""
        lines = ["flowchart LR"]
        giver: dict[str, str] = {}
        by_place: dict[str, list[Operator]] = {}
        operators = [item.operator for item in self.schedule if isinstance(item, Run)]
        for op in operators:
            by_place.setdefault(op.placement, []).append(op)
            giver |= dict.fromkeys(op.gives, op.name)
        for place, members in by_place.items():
            lines.append(f"  subgraph {place}")
            lines += [f"    {op.name}" for op in members]
            lines.append("  end")
        for op in operators:
            for value in op.inputs or ():
                source = giver.get(value, f"{value}([{value}])")
                lines.append(f"  {source} -- {value} --> {op.name}")
            lines += [f"  {other} -.-> {op.name}" for other in op.after]
        return "\n".join(lines)


def _call(operator: Operator, values: Mapping[str, Any]) -> dict[str, Any]:
    result = operator.func(*(values[name] for name in operator.inputs or ()))
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
