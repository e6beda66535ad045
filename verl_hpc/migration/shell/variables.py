"""A script's variables, and the way back to what they were."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias


class Unknown(str):
    """Why a variable has no value that can be read."""


Value: TypeAlias = str | list[str] | Unknown


class Variables:
    """As a script has set them so far."""

    def __init__(self, found: Mapping[str, Value], given: Mapping[str, str]) -> None:
        self._now: dict[str, Value] = {**found, **given}
        self._given = given
        """What the user decides: no command of the script changes it."""
        self._before: list[tuple[str, Value | None]] = []
        """Each name that was set, and what it was until then."""
        self.asked: set[str] = set()
        self.unread = ""
        """A command that may set any variable, if there was one: its line and text."""

    def get(self, name: str) -> Value | None:
        """None if it is not set."""
        self.asked.add(name)
        return self._now.get(name)

    def put(self, name: str, value: Value | None) -> None:
        if name in self._given:
            return
        self._before.append((name, self.get(name)))
        self._store(name, value)

    def _store(self, name: str, value: Value | None) -> None:
        if value is None:
            self._now.pop(name, None)
        else:
            self._now[name] = value

    def mark(self) -> int:
        """For `undo` and `changed`."""
        return len(self._before)

    def undo(self, mark: int) -> None:
        """As they were at the mark: a subshell has ended."""
        while len(self._before) > mark:
            self._store(*self._before.pop())

    def changed(self, mark: int) -> set[str]:
        """Those that are no longer what they were at the mark."""
        then = dict(reversed(self._before[mark:]))
        return {name for name, value in then.items() if value != self.get(name)}
