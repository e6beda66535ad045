"""A compiled flow for people, as lines of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from verl_hpc.config.spans import spans
from verl_hpc.flow.operator import Operator
from verl_hpc.flow.pipeline import Move, Pipeline, Run


def flow_text(pipeline: Pipeline) -> str:
    """The placements with their roles, and one line an operator or move, in order.

    An operator's line has its placement, its name with the roles that it works with, what it needs
    and what it gives; it runs on all ranks of its placement.
    """
    lines = [f"{pipeline.name}({', '.join(pipeline.inputs)})", *_placements(pipeline), ""]
    rows = [_row(item) for item in pipeline.schedule]
    first, second = (max([len(row[i]) for row in rows], default=0) for i in (0, 1))
    lines += [f"  {place:<{first}}  {name:<{second}}  {rest}" for place, name, rest in rows]
    return "\n".join(lines)


def _placements(pipeline: Pipeline) -> Iterator[str]:
    used = _by_placement(pipeline)
    shown = {p: _ranks(ranks) for p, ranks in (pipeline.placements or {}).items() if p in used}
    first, second = (max(map(len, words), default=0) for words in (shown, shown.values()))
    for place, ranks in shown.items():
        roles = dict.fromkeys(role for op in used[place] for role in op.roles)
        yield f"  {place:<{first}}  {ranks:<{second}}  {', '.join(roles)}".rstrip()


def _by_placement(pipeline: Pipeline) -> dict[str, list[Operator]]:
    grouped: dict[str, list[Operator]] = {}
    for operator in pipeline.operators:
        grouped.setdefault(operator.placement, []).append(operator)
    return grouped


def _row(item: Run | Move) -> tuple[str, str, str]:
    if isinstance(item, Move):
        return "move", ", ".join(item.values), f"{item.source} -> {item.target}"
    operator, values = item.operator, item.values
    gives = ", ".join(operator.gives) or "-"
    return operator.placement, _called(operator), f"{', '.join(values) or '-'} => {gives}"


def _called(operator: Operator) -> str:
    """The operator with the roles that it works with."""
    roles = f"({', '.join(operator.roles)})" if operator.roles else ""
    return f"{operator.name}{roles}"


def _ranks(ranks: Sequence[int]) -> str:
    """Ranks as people write them: 0, 1, 2, 5 is 0-2, 5."""
    return f"rank{'s' if len(ranks) > 1 else ''} {spans(ranks)}"
