"""The functions that rows of the table name: they make our settings of verl's keys."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache, partial

from verl_hpc.migration.convert import (
    actor,
    algorithm,
    data,
    engine,
    layout,
    loss,
    model,
    optimizer,
    plain,
    profile,
    reward,
    rollout,
    run,
    tracker,
)
from verl_hpc.migration.row import Draft, Row
from verl_hpc.migration.table import rows
from verl_hpc.migration.values import Values

Convert = Callable[[Values, Draft], None]
_MODULES = {
    module.__name__.rpartition(".")[2]: module
    for module in (
        *(actor, algorithm, data, engine, layout, loss, model, optimizer),
        *(profile, reward, rollout, run, tracker),
    )
}


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
    function: Convert = getattr(_MODULES[module], name)
    return function
