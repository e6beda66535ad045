"""One layout for each role, so that each set fits and a step is as short as can be.

Branch and bound, depth first, role by role: a branch ends where what is left cannot fit by the
bound of memory, or where even the fastest layouts of the roles that are left would take too long.
A set whose roles have all chosen is shown to the memory ledger, which has the last word.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_hpc.planner.search.pareto_front import Option, ParetoFront
from verl_hpc.planner.search.set_bytes import Limits, SetBytes, least_bytes

Seconds = Callable[[Sequence[float], float], float]
"""Function from the seconds of a step's operators and of the refit to those of the step."""


@dataclass(frozen=True)
class RoleSet:
    """Roles that choose layouts on the same ranks."""

    fronts: Mapping[str, ParetoFront]
    outside: SetBytes
    """Bytes that belong to neither a role nor an engine."""
    fits: Callable[[Mapping[str, Option]], bool]
    """Whether the layouts of all its roles fit by the memory ledger."""


@dataclass(frozen=True)
class Chosen:
    """Chosen options, and the step that they give."""

    seconds: float
    durations: Sequence[float]
    """Seconds of each operator; the last entry is the refit."""
    options: Mapping[str, Option]


def choose(
    seconds: Seconds, sets: Sequence[RoleSet], hosts: Sequence[float], limits: Limits, below: float
) -> Chosen | None:
    """The fastest choice that fits and takes less than `below` seconds; None without one.

    Args:
        seconds: grows with each of its arguments.
        sets: of roles.
        hosts: seconds of each operator that no choice changes, and last of the refit.
        limits: of the bytes of a rank.
        below: what it must undercut.
    """
    best: Chosen | None = None
    while True:
        search = _Search(seconds, sets, limits, below)
        better = search.run(hosts)
        if better is not None:
            best, below = better, better.seconds
        # The ledger refused options that the bound admitted: retry with those they dominated.
        released = [front.release(option) for front, option in search.refused]
        if not any(released):
            return best


class _Role:
    """A role that chooses an option.

    Args:
        name: of the role.
        role_set: the set that it belongs to.
        rest: roles of that set that choose after it.
    """

    def __init__(self, name: str, role_set: RoleSet, rest: Sequence[str]) -> None:
        self.name, self.set, self.is_last = name, role_set, not rest
        self.is_first = len(rest) == len(role_set.fronts) - 1
        self.front = role_set.fronts[name]
        self.rest = [role_set.fronts[other] for other in rest]

    @cached_property
    def least(self) -> SetBytes:
        """Least bytes of the roles after it."""
        return _added(least_bytes([o.bytes for o in front.options]) for front in self.rest)


class _Search:
    def __init__(
        self, seconds: Seconds, sets: Sequence[RoleSet], limits: Limits, below: float
    ) -> None:
        self._seconds, self._limits, self._below = seconds, limits, below
        self._roles = [
            _Role(name, one, list(one.fronts)[place + 1 :])
            for one in sets
            for place, name in enumerate(one.fronts)
        ]
        self._best: Chosen | None = None
        self.refused: list[tuple[ParetoFront, Option]] = []
        """Options that the ledger refused although the bound admitted them."""

    def run(self, hosts: Sequence[float]) -> Chosen | None:
        if any(not role.front.options for role in self._roles):
            return None
        durations = list(hosts)
        for role in self._roles:
            durations = [a + b for a, b in zip(durations, role.front.least_seconds, strict=True)]
        self._go(0, durations, SetBytes(), {})
        return self._best

    def _go(
        self, place: int, durations: list[float], taken: SetBytes, chosen: dict[str, Option]
    ) -> None:
        """Choose for the roles from `place` on, for which `durations` has the least seconds.

        Args:
            taken: bytes of the set's roles before.
            chosen: options of all roles before.
        """
        total = self._seconds(durations[:-1], durations[-1])
        if total >= self._below:
            return
        if place and self._roles[place - 1].is_last and not self._accepted(place, chosen):
            return
        if place == len(self._roles):
            self._below = total
            self._best = Chosen(total, durations, dict(chosen))
            return
        role = self._roles[place]
        if role.is_first:
            taken = role.set.outside
        for option in role.front.options:
            mine = taken.plus(option.bytes)
            if self._limits.admit(mine.plus(role.least)):
                now = _swapped(durations, role.front.least_seconds, option.seconds)
                self._go(place + 1, now, mine, chosen | {role.name: option})

    def _accepted(self, place: int, chosen: Mapping[str, Option]) -> bool:
        """Whether the ledger accepts the set whose last role has just chosen."""
        one = self._roles[place - 1].set
        options = {name: chosen[name] for name in one.fronts}
        if one.fits(options):
            return True
        self.refused += [(one.fronts[name], option) for name, option in options.items()]
        return False


def may_fit(role_set: RoleSet, limits: Limits) -> bool:
    """Whether the memory bound admits some choice."""
    fronts = list(role_set.fronts.values())
    if any(not front.options for front in fronts):
        return False
    taken = [role_set.outside]
    for place, front in enumerate(fronts):
        rest = _added(least_bytes([o.bytes for o in f.options]) for f in fronts[place + 1 :])
        # Partial sums with equal bytes are interchangeable.
        sizes = dict.fromkeys(one.plus(o.bytes) for one in taken for o in front.options)
        taken = [one for one in sizes if limits.admit(one.plus(rest))]
    return bool(taken)


def _added(found: Iterable[SetBytes]) -> SetBytes:
    total = SetBytes()
    for one in found:
        total = total.plus(one)
    return total


def _swapped(
    durations: Sequence[float], before: Sequence[float], after: Sequence[float]
) -> list[float]:
    return [d - a + b for d, a, b in zip(durations, before, after, strict=True)]
