"""Verdicts of the doctor's checks, one line each."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

State = Literal["ok", "fails", "unknown"]


@dataclass(frozen=True)
class Verdict:
    """A check, its outcome, and what to do about it."""

    check: str
    state: State
    found: str
    todo: str = ""
    """The next step; every failure has one."""
    nodes: tuple[str, ...] = ()
    """Nodes that are to blame, if any."""

    def __str__(self) -> str:
        todo = f"; {self.todo}" if self.todo else ""
        return f"{self.state:<7}  {self.check:<13}  {self.found}{todo}"


def ok(check: str, found: str) -> Verdict:
    return Verdict(check, "ok", found)


def fails(check: str, found: str, todo: str, nodes: Iterable[str] = ()) -> Verdict:
    return Verdict(check, "fails", found, todo, tuple(nodes))


def unknown(check: str, found: str, todo: str = "") -> Verdict:
    return Verdict(check, "unknown", found, todo)


def any_fails(verdicts: Iterable[Verdict]) -> bool:
    return any(verdict.state == "fails" for verdict in verdicts)


def to_data(verdicts: Iterable[Verdict]) -> list[dict[str, Any]]:
    """Return verdicts as data for JSON."""
    return [asdict(verdict) for verdict in verdicts]


def failing_nodes(verdicts: Iterable[Verdict]) -> list[tuple[str, str]]:
    """Return each node that a verdict blames, with the reasons."""
    reasons: dict[str, list[str]] = {}
    for verdict in verdicts:
        for node in verdict.nodes if verdict.state == "fails" else ():
            reasons.setdefault(node, []).append(f"{verdict.check}: {verdict.found}")
    return [(node, "; ".join(texts)) for node, texts in sorted(reasons.items())]


def counted(number: int, noun: str) -> str:
    """Return a number with its noun: `1 node`, `2 nodes`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def listed(names: Sequence[str], most: int = 8, separator: str = ", ") -> str:
    """Join names into a line that stays readable with hundreds of them."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return separator.join(names[:most]) + more
