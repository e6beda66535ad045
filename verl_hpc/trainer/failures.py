"""Failures of code of the user, as ranks tell each other of them."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

_MOST_REASONS = 3
_MOST_TEXT = 300


def some_reasons(reasons: Iterable[str]) -> list[str]:
    """The first different ones, none of them long: thousands would be megabytes, to every rank."""
    different = dict.fromkeys(reason[:_MOST_TEXT] for reason in reasons)
    return list(islice(different, _MOST_REASONS))
