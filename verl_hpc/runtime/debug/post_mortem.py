"""Dump a failing rank's stack and local variables.

Values are told by what is safe to tell: numbers, words, shapes. What looks like a secret, by the
name of its variable or its key, or because an environment variable with such a name has that
value, is left out. Texts may be data of the run: keep the file as private as the data.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from numbers import Number
from pathlib import Path, PurePath
from types import FrameType
from typing import Any

from verl_hpc.config.secret import looks_secret

DIRECTORY = "post_mortem"
REDACTED = "[redacted]"
_MOST_TEXT = 300
_MOST_ITEMS = 8
_MOST_DEPTH = 3
_SHORTEST_SECRET = 6


class PostMortem:
    """Leaves a file for each exception that ends this rank.

    Args:
        run_directory: gets post_mortem/rank_N.txt, readable by its owner alone.
        rank: this one.
        size: ranks of the job; of one rank at a terminal, a prompt of pdb opens as well.
    """

    def __init__(self, run_directory: Path, rank: int, size: int) -> None:
        self._file = run_directory / DIRECTORY / f"rank_{rank:05d}.txt"
        self._size = size

    def write(self, error: BaseException, stage: str) -> Path | None:
        """Write the report; None where that fails, since another failure is under way.

        Args:
            error: as it was caught.
            stage: what the rank was doing.
        """
        try:
            self._file.parent.mkdir(mode=0o700, exist_ok=True)
            self._file.unlink(missing_ok=True)  # a pipe of this name would wait for a reader
            self._file.touch(0o600)
            self._file.write_text(describe(error, stage), encoding="utf-8", errors="replace")
        except OSError:
            return None
        return self._file

    def debug(self, error: BaseException) -> None:
        """Open pdb where the exception was raised, if there is a terminal."""
        if self._size == 1 and sys.stdin.isatty() and sys.stdout.isatty():
            import pdb  # noqa: T100 (asked for by a setting)

            pdb.post_mortem(error.__traceback__)


def describe(error: BaseException, stage: str) -> str:
    """The exceptions of a chain, the first cause first, with each call's variables."""
    parts = [f"failed in {stage}\n"]
    for link in reversed(list(_chain(error))):
        parts.append(f"\n{type(link).__name__}: {link}\n")
        parts += map(_call, traceback.walk_tb(link.__traceback__))
    return _without_secrets("".join(parts))


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    current: BaseException | None = error
    while current is not None and id(current) not in seen:
        seen.add(id(current))
        yield current
        hidden = current.__suppress_context__
        current = current.__cause__ or (None if hidden else current.__context__)


def _call(place: tuple[FrameType, int]) -> str:
    frame, line = place
    code = frame.f_code
    heading = f'\n  File "{code.co_filename}", line {line}, in {code.co_qualname}\n'
    lines = (
        f"    {name} = {_named(name, value)}\n"
        for name, value in frame.f_locals.items()
        if not name.startswith("__")
    )
    # Whole modules are no news.
    return heading if code.co_name == "<module>" else heading + "".join(lines)


def _named(name: str, value: Any, depth: int = 0) -> str:
    return REDACTED if looks_secret(name) else _value(value, depth)


def _value(value: Any, depth: int) -> str:
    """What is safe to tell of a value; looking at it must not fail, whatever it is."""
    try:
        return _by_kind(value, depth)
    except Exception as error:
        return f"<unreadable: {type(error).__name__}>"


def _by_kind(value: Any, depth: int) -> str:
    """A value by its kind; of objects, whose `repr` may say anything, only the type."""
    if value is None or isinstance(value, Number | Enum | PurePath):
        return _cut(repr(value))
    if isinstance(value, str):
        return _cut(repr(value[: _MOST_TEXT + 1]))
    if isinstance(value, BaseException):
        return _cut(f"{type(value).__name__}: {value}")
    shape = getattr(value, "shape", None)
    if shape is not None and not isinstance(value, type):
        parts = (f"{n} {getattr(value, n)}" for n in ("dtype", "device") if hasattr(value, n))
        return f"<{type(value).__name__} {list(shape)}, {', '.join(parts)}>"
    if isinstance(value, Mapping | Sequence | AbstractSet) and not isinstance(
        value, bytes | bytearray
    ):
        return _items(value, depth)
    return f"<{type(value).__module__}.{type(value).__qualname__}>"


def _items(value: Mapping[Any, Any] | Sequence[Any] | AbstractSet[Any], depth: int) -> str:
    kind = f"{type(value).__name__} of {len(value)}"
    if depth == _MOST_DEPTH or not value:
        return f"<{kind}>"
    if isinstance(value, Mapping):
        items = [f"{_value(k, depth + 1)}: {_named(str(k), v, depth + 1)}" for k, v in _few(value)]
    else:
        items = [
            _value(item, depth + 1) for item, _ in zip(value, range(_MOST_ITEMS), strict=False)
        ]
    more = ", ..." if len(value) > _MOST_ITEMS else ""
    return f"<{kind}: {', '.join(items)}{more}>"


def _few(value: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    return (pair for pair, _ in zip(value.items(), range(_MOST_ITEMS), strict=False))


def _cut(text: str) -> str:
    return text if len(text) <= _MOST_TEXT else f"{text[:_MOST_TEXT]}..."


def _without_secrets(text: str) -> str:
    """Take out values of the environment's secrets, wherever they have got to."""
    secret = {value for name, value in os.environ.items() if looks_secret(name)}
    for value in sorted(secret, key=len, reverse=True):
        if len(value) >= _SHORTEST_SECRET:
            text = text.replace(value, REDACTED)
    return text
