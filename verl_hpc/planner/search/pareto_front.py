"""Options of which none is better than another in everything."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_hpc.planner.search.cuts import Cut
from verl_hpc.planner.search.set_bytes import SetBytes


@dataclass(frozen=True, eq=False)
class Option:
    """One choice for a role."""

    cut: Cut | None
    """None of rollout ranks of their own."""
    rollout_tp: int | None
    """Of the engines on its ranks, if there are some."""
    seconds: tuple[float, ...]
    """That it adds to each operator, and last to the refit."""
    bytes: SetBytes
    """That it has at least, with its engine."""

    @cached_property
    def measures(self) -> tuple[float, ...]:
        """All that is better smaller."""
        return (*self.seconds, *self.bytes.first, *self.bytes.last)


class ParetoFront:
    """The options of a role that are worth choosing, the fastest first.

    One that is nowhere better than another one waits behind it: what fits with the first is as
    fast with the other. That holds of bounds of memory. Where the ledger refuses the other one all
    the same, `release` brings back those behind it.
    """

    def __init__(self, options: Iterable[Option]) -> None:
        self.options: list[Option] = []
        self._behind: dict[Option, list[Option]] = {}
        self._add(options)

    def _add(self, options: Iterable[Option]) -> None:
        for option in sorted(options, key=lambda one: sum(one.measures)):
            better = next((one for one in self._behind if no_worse(one, option)), None)
            if better is not None:
                self._behind[better].append(option)
            else:
                self._behind[option] = []
                self.options.append(option)
        self.options.sort(key=lambda one: sum(one.seconds))
        self.least_seconds: Sequence[float] = [
            min(found) for found in zip(*(one.seconds for one in self.options), strict=True)
        ]

    def release(self, option: Option) -> bool:
        """Bring back what waits behind an option, now and from now on; whether something did."""
        waiting = self._behind.pop(option, [])
        if waiting:
            self._add(waiting)
        return bool(waiting)


def no_worse(one: Option, other: Option) -> bool:
    """Whether an option is nowhere worse than another one."""
    return all(a <= b for a, b in zip(one.measures, other.measures, strict=True))
