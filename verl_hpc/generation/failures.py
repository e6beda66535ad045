"""Failures of code of the user, as ranks tell each other of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from verl_hpc.runtime.control import Control

_MOST_REASONS = 3
_MOST_TEXT = 300


def some_reasons(reasons: Iterable[str]) -> list[str]:
    """The first different ones, none of them long: thousands would be megabytes, to every rank."""
    different = dict.fromkeys(reason[:_MOST_TEXT] for reason in reasons)
    return list(islice(different, _MOST_REASONS))


_Places = dict[str, tuple[int, int]]
"""Reasons, and where each came first: the rank, and which of its reasons."""


def agreed_reasons(control: Control, reasons: Iterable[str]) -> list[str]:
    """The first different ones of all ranks, the same everywhere; every rank calls it."""
    mine: _Places = {r: (control.rank, n) for n, r in enumerate(some_reasons(reasons))}
    first = control.merge(mine, _first)
    return list(first)


def _first(one: _Places, other: _Places) -> _Places:
    found = dict(other)
    for reason, place in one.items():
        found[reason] = min(place, found.get(reason, place))
    return dict(sorted(found.items(), key=lambda item: item[1])[:_MOST_REASONS])
