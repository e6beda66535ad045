"""Conversions of one key to one setting, and the functions that convert all keys."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial
from importlib import import_module
from itertools import cycle
from typing import Any

from verl_hpc.migration.reference import MISSING
from verl_hpc.migration.row import Draft, Row, has_critic, same
from verl_hpc.migration.table import known, rows
from verl_hpc.migration.values import Refused, Values


def copy(row: Row, values: Values, draft: Draft) -> None:
    """The value as it is, or our word for it."""
    if row.key in values or not row.if_given:
        value = our_word(values, row.key) if row.words else values[row.key]
        draft.put(row.ours[0], value, row.key)


def never(row: Row, values: Values, draft: Draft) -> None:
    """verl's -1 is our 0."""
    value = values[row.key]
    draft.put(row.ours[0], 0 if value in (-1, 0, None) else value, row.key)


def listed(row: Row, values: Values, draft: Draft) -> None:
    """A list, or one value as a list, if it is given."""
    if row.key in values and (value := values[row.key]) is not None:
        draft.put(row.ours[0], value if isinstance(value, list) else [value], row.key)


def whole(row: Row, values: Values, draft: Draft) -> None:
    """A whole number."""
    draft.put(row.ours[0], values.whole(row.key), row.key)


def agree(row: Row, values: Values, _: Draft) -> None:
    """Nothing: the value must be that of another key, and the critic's counts if there is one."""
    value, others = values[row.key], values[row.other]
    is_unset = value is None and values.default(row.key) is None
    is_idle = row.key.startswith("critic.") and not has_critic(values)
    if not is_unset and not is_idle and not same(value, others):
        raise refusal(row.key, row.otherwise.format(other=row.other, value=others))


def chosen(row: Row, values: Values, draft: Draft) -> None:
    """The value, if another key makes a choice with which it counts; verl reads no other."""
    choice = our_word(values, row.other)
    settings = dict(zip(row.choices, cycle(row.ours), strict=False))
    if choice in settings:
        draft.put(settings[choice], values[row.key], row.key)
    elif row.key in values and values[row.key] != values.default(row.key):
        draft.note(row.key, row.otherwise.format(ours=choice, value=values[row.other]))


CONVERSIONS: Mapping[str, Callable[[Row, Values, Draft], None]] = {
    "": copy,
    "agree": agree,
    "chosen": chosen,
    "listed": listed,
    "never": never,
    "whole": whole,
}
"""The functions by the name that a row has for them."""


@cache
def converters() -> tuple[Callable[[Values, Draft], None], ...]:
    """Return the functions in the table's order, each once: one of several keys, or plain ones,
    which are each of one row."""
    by: dict[str, Callable[[Values, Draft], None]] = {}
    for row in rows():
        if row.ours:
            by.setdefault(row.by if "." in row.by else row.key, _function(row))
    return tuple(by.values())


def _function(row: Row) -> Callable[[Values, Draft], None]:
    module, _, name = row.by.rpartition(".")
    if not module:
        return partial(CONVERSIONS[name], row)
    # Only here, so that what is never asked for verl's keys does not load them.
    function: Callable[[Values, Draft], None] = getattr(
        import_module(f"{__package__}.{module}"), name
    )
    return function


def copied(values: Values, draft: Draft, *keys: str) -> None:
    """The values of keys as they are, each for the setting of its row."""
    for key in keys:
        draft.put(known(key).ours[0], values[key], key)


def refusal(key: str, why: str) -> Refused:
    """The refusal of a key, with what its row has nearest to it."""
    row = known(key)
    return Refused(key, why, row.near or row.ours[0])


def our_word(values: Values, key: str, why_not: Mapping[str, str] | None = None) -> Any:
    """Our word for the value of a key, or for what is given in its place.

    Args:
        why_not: reasons, by a word that is refused.

    Raises:
        Refused: it is no word that the key's row has.
    """
    return word_for(key, values[key], why_not)


def word_for(key: str, value: Any, why_not: Mapping[str, str] | None = None) -> Any:
    """Our word for a value that a key may have.

    Raises:
        Refused: as `our_word`.
    """
    row = known(key)
    if not isinstance(value, list | dict) and value in row.words:
        return row.words[value]
    allowed = ", ".join(str(word) for word in row.words if word != MISSING)
    why = (why_not or {}).get(str(value), row.otherwise or f"expected one of {allowed}")
    ours = ", ".join(dict.fromkeys(str(word) for word in row.words.values()))
    near = row.near.format(ours=ours) or row.ours[0]
    raise Refused(key, why.format(value=value), near)
