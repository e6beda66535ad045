"""Cases that a test has too many of for every push."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

REASON = "a further case; run with --slow"


def all_slow(*cases: Any) -> list[Any]:
    """Cases for `parametrize`, tuples of values or single ones, that run with --slow alone."""
    return [_slow(case) for case in cases]


def mostly_slow(cases: Iterable[Any], every: int) -> list[Any]:
    """Cases for `parametrize`: the first of `every` so many as it is, the others slow.

    Where cases are a product, an `every` that shares no factor with the length of its last axis
    takes all values of that axis in turn.
    """
    return [case if number % every == 0 else _slow(case) for number, case in enumerate(cases)]


def _slow(case: Any) -> Any:
    values = case if isinstance(case, tuple) else (case,)
    return pytest.param(*values, marks=pytest.mark.slow(reason=REASON))
