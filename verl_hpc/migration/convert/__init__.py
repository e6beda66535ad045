"""The functions that rows of the table name: they make our settings of verl's keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial
from importlib import import_module

from verl_hpc.migration.convert import plain
from verl_hpc.migration.row import Draft, Row
from verl_hpc.migration.table import rows
from verl_hpc.migration.values import Values

Convert = Callable[[Values, Draft], None]


@cache
def converters() -> tuple[Convert, ...]:
    """Return the functions in the table's order, each once: one of several keys, or plain ones,
    which are each of one row."""
    found: dict[str, Convert] = {}
    for row in rows():
        if row.ours:
            found.setdefault(row.by if "." in row.by else row.key, _function(row))
    return tuple(found.values())


def _function(row: Row) -> Convert:
    module, _, name = row.by.rpartition(".")
    if not module:
        return partial(plain.CONVERSIONS[name], row)
    # Only here, so that what is never asked for verl's keys does not load them.
    function: Convert = getattr(import_module(f"{__name__}.{module}"), name)
    return function
