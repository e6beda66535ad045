"""A row of the table: a verl key, and what becomes of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

from verl_hpc.migration.reference import MISSING
from verl_hpc.migration.values import Refused, Values

Fate = Literal["honoured", "agrees", "fixed", "any", "refused"]
RANKS = "ranks"
"""In the place of a setting: how many processes are started."""
NONE = "none"
"""In the place of what to use instead, where `says` tells why nothing serves."""


@dataclass
class Draft:
    """Our settings, as they come together."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Values by dotted name."""
    origins: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """verl's keys that a setting comes from."""
    notes: dict[str, str] = field(default_factory=dict)
    """What a reader should know about a key, by key."""
    ranks: int | None = None
    """Processes that the run is for, if it is said."""

    def put(self, name: str, value: Any, *keys: str) -> None:
        self.settings[name] = value
        self.origins[name] = keys

    def note(self, key: str, text: str) -> None:
        self.notes[key] = text


Convert = Callable[[Values, Draft], None]


@dataclass(frozen=True)
class Row:
    """What becomes of one key, or of all keys of a pattern."""

    key: str
    """A key; or a pattern, in which `*` is one or more parts of a name."""
    fate: Fate
    """honoured: it decides a setting of ours. agrees: only what goes with the keys that decide the
    setting is taken, or what makes no difference. fixed: only values at which verl does what
    happens here are taken. any: all are taken, for none changes a number here. refused: none is."""
    ours: tuple[str, ...] = ()
    """Settings that it decides, or that it agrees with."""
    says: str = ""
    """How it is converted, or why it is refused."""
    near: str = ""
    """What to use instead of a fixed or refused key, in our terms, or NONE."""
    convert: Convert | None = None
    """Converts keys that are honoured, or agree; several keys may share it."""
    also: tuple[Any, ...] = ()
    """Values of a fixed key that are taken besides verl's default."""

    @property
    def is_pattern(self) -> bool:
        return "*" in self.key

    @cached_property
    def expression(self) -> re.Pattern[str]:
        return re.compile(re.escape(self.key).replace(r"\*", ".+"))

    def check(self, key: str, values: Values) -> None:
        """Raises: Refused: the value that is given cannot be honoured."""
        if self.fate == "refused":
            raise Refused(key, self.says, self.near)
        if self.fate == "fixed" and not self._is_taken(key, values):
            raise Refused(key, self.says, self.near)

    def _is_taken(self, key: str, values: Values) -> bool:
        found = values[key]
        return any(same(found, value) for value in (values.default(key), *self.also))


def same(one: Any, other: Any) -> bool:
    """Whether two values are equal, 1 and 1.0 too, but not 1 and true."""
    return bool(one == other) and isinstance(one, bool) == isinstance(other, bool)


def to(
    key: str,
    ours: str,
    says: str = "",
    words: Mapping[Any, Any] | None = None,
    change: Callable[[Any], Any] | None = None,
    why_not: Mapping[str, str] | None = None,
    is_needed: bool = True,
) -> Row:
    """A key whose value is that of one of our settings.

    Args:
        words: our value for each of verl's; others are refused.
        change: makes our value of verl's.
        why_not: reasons, by a word that is refused.
        is_needed: whether verl's default counts as if it were given. It does not where it decides
            no number, and ours is chosen for what is here.
    """

    def convert(values: Values, draft: Draft) -> None:
        if not is_needed and key not in values:
            return
        value = values[key]
        if words is not None:
            if isinstance(value, list | dict) or value not in words:
                allowed = ", ".join(str(word) for word in words if word != MISSING)
                why = (why_not or {}).get(str(value), f"expected one of {allowed}")
                raise Refused(key, why, ours)
            value = words[value]
        draft.put(ours, change(value) if change else value, key)

    return Row(key, "honoured", (ours,), says, convert=convert)


def together(
    convert: Convert, rows: Mapping[str, tuple[str, str]], fate: Fate = "honoured"
) -> list[Row]:
    """Keys that one function reads together.

    Args:
        rows: settings of ours, apart by spaces, and how it is converted, by key.
    """
    return [
        Row(key, fate, tuple(ours.split()), says, convert=convert)
        for key, (ours, says) in rows.items()
    ]


def fixed(key: str, says: str, near: str, also: tuple[Any, ...] = ()) -> Row:
    return Row(key, "fixed", says=says, near=near, also=also)


def any_value(keys: str, says: str) -> list[Row]:
    """Keys, apart by white space, of speed and memory in verl, which the engine here sees to."""
    return [Row(key, "any", says=says) for key in keys.split()]


def all_fixed(keys: str, says: str, near: str) -> list[Row]:
    """Keys, apart by white space, that share a reason."""
    return [fixed(key, says, near) for key in keys.split()]


def refused(key: str, says: str, near: str) -> Row:
    return Row(key, "refused", says=says, near=near)
