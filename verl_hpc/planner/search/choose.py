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
        """Of each operator, of whichever option; infinite where there is none."""
        if not self.options:
            return (float("inf"),)
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
    def __init__(
        self, seconds: Seconds, seats: Sequence[Seat], limit: int | None, below: float
    ) -> None:
        self._seconds, self._seats, self._limit = seconds, seats, limit
        self._below = below
        self._best: Chosen | None = None
        self._rest = _least_rest(seats)

    def run(self, hosts: Sequence[float]) -> Chosen | None:
        durations = list(hosts)
        for seat in self._seats:
            durations = [a + b for a, b in zip(durations, seat.least_seconds, strict=True)]
        self._go(0, durations, _EMPTY, {})
        return self._best

    def _go(
        self, place: int, durations: list[float], bytes_of_set: _Bytes, taken: dict[str, Option]
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
            bytes_of_set = _EMPTY
        least = seat.least_seconds
        for option in seat.options:
            mine = bytes_of_set.with_(option)
            if self._limit is not None and mine.with_(self._rest[place]).peak > self._limit:
                continue
            now = [d - a + b for d, a, b in zip(durations, least, option.seconds, strict=True)]
            taken[seat.role] = option
            self._go(place + 1, now, mine, taken)
        taken.pop(seat.role, None)


@dataclass(frozen=True)
class _Bytes:
    """Of the roles of a set together."""

    resident: int = 0
    working: int = 0
    generating: int = 0
    arriving: int = 0
    engine: int = 0

    def with_(self, other: Option | _Bytes) -> _Bytes:
        arriving, engine = (
            (other.arriving, other.engine) if isinstance(other, _Bytes) else other.engine
        )
        return _Bytes(
            self.resident + other.resident,
            max(self.working, other.working),
            self.generating + other.generating,
            self.arriving + arriving,
            self.engine + engine,
        )

    @property
    def peak(self) -> int:
        """While some role computes, while weights arrive, or while engines generate."""
        return max(
            self.resident + self.working,
            self.resident + self.arriving,
            self.generating + self.engine,
        )


_EMPTY = _Bytes()


def _least_rest(seats: Sequence[Seat]) -> list[_Bytes]:
    """Of the seats behind each in its set, whatever they choose."""
    found: list[_Bytes] = [_EMPTY] * len(seats)
    for place in range(len(seats) - 2, -1, -1):
        after = seats[place + 1]
        if after.number == seats[place].number:
            found[place] = found[place + 1].with_(_least(after.options))
    return found


def _least(options: Sequence[Option]) -> _Bytes:
    return _Bytes(
        min(o.resident for o in options),
        min(o.working for o in options),
        min(o.generating for o in options),
        min(o.engine[0] for o in options),
        min(o.engine[1] for o in options),
    )
