"""Options that no other option dominates."""

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
    """Training layout; None for ranks that only run rollout engines."""
    rollout_tp: int | None
    """Tensor-parallel size of the engines on its ranks, if any."""
    seconds: tuple[float, ...]
    """Seconds that it adds to each operator; the last entry is the refit."""
    bytes: SetBytes
    """Least bytes, with its engine."""

    @cached_property
    def measures(self) -> tuple[float, ...]:
        """All measures, each better if smaller."""
        return (*self.seconds, *self.bytes.first, *self.bytes.last)


class ParetoFront:
    """The options of a role that are worth choosing, the fastest first.

    An option that is nowhere better than another waits for it: whatever fits with the first is as
    fast with the other. That holds for the memory bounds. Where the ledger nevertheless refuses the
    other, `release` brings back those that wait for it.
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
            min(column) for column in zip(*(one.seconds for one in self.options), strict=True)
        ]

    def release(self, option: Option) -> bool:
        """Bring back the options that wait for this one, now and later; return whether there were
        any."""
        waiting = self._behind.pop(option, [])
        if waiting:
            self._add(waiting)
        return bool(waiting)


def no_worse(one: Option, other: Option) -> bool:
    """Whether an option is nowhere worse than another one."""
    return all(a <= b for a, b in zip(one.measures, other.measures, strict=True))
