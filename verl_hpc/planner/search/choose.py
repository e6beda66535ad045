"""One layout for each role, so that each set fits and a step is as short as can be."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from verl_hpc.planner.search.options import Option

Seconds = Callable[[Sequence[float], float], float]
"""Of a step, from those of its operators and of the refit."""


class Seat:
    """A role on ranks, which has to choose a layout."""

    def __init__(self, role: str, number: int, options: Sequence[Option]) -> None:
        """
        Args:
            role: its name.
            number: of its set.
            options: the fastest first.
        """
        self.role, self.number, self.options = role, number, options

    @cached_property
    def least_seconds(self) -> Sequence[float]:
        """Of each operator, of whichever option."""
        return [min(found) for found in zip(*(o.seconds for o in self.options), strict=True)]


@dataclass(frozen=True)
class Chosen:
    """What was chosen."""

    seconds: float
    durations: Sequence[float]
    """Of each operator, and last of the refit."""
    options: Mapping[str, Option]


def choose(
    seconds: Seconds,
    seats: Sequence[Seat],
    hosts: Sequence[float],
    limit: int | None,
    below: float,
) -> Chosen | None:
    """The fastest choice that fits and takes less than `below` seconds; None without one.

    Args:
        seconds: grows with each of its arguments.
        seats: those of a set follow each other.
        hosts: seconds of each operator that no choice changes, and last of the refit.
        limit: bytes that a device has; None refuses nothing.
        below: what it must undercut.
    """
    if any(not seat.options for seat in seats):
        return None
    return _Search(seconds, seats, limit, below).run(hosts)


class _Search:
    """Depth first, seat by seat; a branch ends where what is left cannot fit, or where the fastest
    of what still fits is too slow."""

    def __init__(
        self, seconds: Seconds, seats: Sequence[Seat], limit: int | None, below: float
    ) -> None:
        self._seconds, self._seats, self._limit = seconds, seats, limit
        self._below = below
        self._best: Chosen | None = None
        self._rest = _rests(seats, _least)
        self._most = _rests(seats, _most)

    def run(self, hosts: Sequence[float]) -> Chosen | None:
        durations = list(hosts)
        for seat in self._seats:
            durations = _plus(durations, seat.least_seconds)
        self._go(0, durations, _NOTHING, {})
        return self._best

    def _go(
        self, place: int, durations: list[float], taken_bytes: Bytes, taken: dict[str, Option]
    ) -> None:
        """Choose for the seats from `place` on; durations have the least of those."""
        total = self._seconds(durations[:-1], durations[-1])
        if total >= self._below:
            return
        if place == len(self._seats):
            self._below = total
            self._best = Chosen(total, durations, dict(taken))
            return
        seat = self._seats[place]
        if place and self._seats[place - 1].number != seat.number:
            taken_bytes = _NOTHING
        if not self._can_be(place, durations, taken_bytes):
            return
        for option in seat.options:
            mine = _with(taken_bytes, option.sizes)
            if self._limit is not None and _peak(_with(mine, self._rest[place])) > self._limit:
                continue
            now = _swapped(durations, seat.least_seconds, option.seconds)
            taken[seat.role] = option
            self._go(place + 1, now, mine, taken)
        taken.pop(seat.role, None)

    def _can_be(self, place: int, durations: Sequence[float], taken_bytes: Bytes) -> bool:
        """Whether the seats left in a set could still be fast enough, if each had what the least
        of the others leaves it."""
        limit = self._limit
        if limit is None:
            return True
        seat = self._seats[place]
        whole = _with(taken_bytes, _with(_most(seat.options), self._most[place]))
        if _peak(whole) <= limit:
            return True
        seats = [s for s in self._seats[place:] if s.number == seat.number]
        least = [_least(s.options) for s in seats]
        now = list(durations)
        for i, one in enumerate(seats):
            others = taken_bytes
            for j, sizes in enumerate(least):
                others = _with(others, sizes) if i != j else others
            fitting = [o.seconds for o in one.options if _peak(_with(others, o.sizes)) <= limit]
            if not fitting:
                return False
            now = _swapped(now, one.least_seconds, [*map(min, zip(*fitting, strict=True))])
        return self._seconds(now[:-1], now[-1]) < self._below


Bytes = tuple[int, int, int, int, int]
"""Of the roles of a set together: resident, working, generating, and of an engine while weights
arrive and while it generates."""
_NOTHING: Bytes = (0, 0, 0, 0, 0)


def _with(one: Bytes, other: Bytes) -> Bytes:
    """Together: one role computes at a time."""
    return (
        one[0] + other[0],
        one[1] if one[1] > other[1] else other[1],
        one[2] + other[2],
        one[3] + other[3],
        one[4] + other[4],
    )


def _peak(found: Bytes) -> int:
    """While some role computes, while weights arrive, or while engines generate."""
    resident, working, generating, arriving, engine = found
    return max(resident + working, resident + arriving, generating + engine)


def _rests(seats: Sequence[Seat], of: Callable[[Sequence[Option]], Bytes]) -> list[Bytes]:
    """Of the seats behind each in its set."""
    found: list[Bytes] = [_NOTHING] * len(seats)
    for place in range(len(seats) - 2, -1, -1):
        after = seats[place + 1]
        if after.number == seats[place].number:
            found[place] = _with(found[place + 1], of(after.options))
    return found


def _least(options: Sequence[Option]) -> Bytes:
    """Of each, of whichever option."""
    a, b, c, d, e = (min(sizes) for sizes in zip(*(o.sizes for o in options), strict=True))
    return a, b, c, d, e


def _most(options: Sequence[Option]) -> Bytes:
    a, b, c, d, e = (max(sizes) for sizes in zip(*(o.sizes for o in options), strict=True))
    return a, b, c, d, e


def _plus(one: Sequence[float], other: Sequence[float]) -> list[float]:
    return [a + b for a, b in zip(one, other, strict=True)]


def _swapped(
    durations: Sequence[float], before: Sequence[float], after: Sequence[float]
) -> list[float]:
    return [d - a + b for d, a, b in zip(durations, before, after, strict=True)]
