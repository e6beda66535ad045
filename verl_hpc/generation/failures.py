"""Exchange the error messages of users' code between ranks."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from verl_hpc.runtime.control import Control

_MOST_REASONS = 3
_MOST_TEXT = 300


def some_reasons(reasons: Iterable[str]) -> list[str]:
    """Return the first few distinct reasons, truncated: thousands of them would send megabytes to
    every rank."""
    different = dict.fromkeys(reason[:_MOST_TEXT] for reason in reasons)
    return list(islice(different, _MOST_REASONS))


_Places = dict[str, tuple[int, int]]
"""(rank, index) of each reason's first occurrence."""


def agreed_reasons(control: Control, reasons: Iterable[str]) -> list[str]:
    """Return the first distinct reasons over all ranks, equal on every rank, which all call
    this."""
    mine: _Places = {r: (control.rank, n) for n, r in enumerate(some_reasons(reasons))}
    first = control.merge(mine, _first)
    return list(first)


def _first(one: _Places, other: _Places) -> _Places:
    places = dict(other)
    for reason, place in one.items():
        places[reason] = min(place, places.get(reason, place))
    return dict(sorted(places.items(), key=lambda item: item[1])[:_MOST_REASONS])
