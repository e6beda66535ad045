"""What a shell script consists of: commands, words and their parts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias


@dataclass(frozen=True)
class Text:
    text: str
    quoted: bool
    """Nothing splits it, and it is no keyword."""


@dataclass(frozen=True)
class Parameter:
    """`$NAME` or `${NAME...}`."""

    source: str
    name: str
    """`@` also of `$*`."""
    index: str | None
    """Of an array: `@` for all of it, `*` for all as one word."""
    operator: str
    argument: Word | None
    """What stands behind the operator."""
    quoted: bool


@dataclass(frozen=True)
class Sum:
    """`$((...))`."""

    source: str
    inner: Word
    quoted: bool


@dataclass(frozen=True)
class Program:
    """`$(...)`, or the same in backticks."""

    source: str
    body: str
    quoted: bool


@dataclass(frozen=True)
class Unread:
    """What is an error where it is asked for."""

    source: str
    why: str


Part: TypeAlias = Text | Parameter | Sum | Program | Unread


@dataclass(frozen=True)
class Word:
    """What the shell expands to none, one or several words."""

    parts: tuple[Part, ...]
    line: int
    source: str
    array: tuple[Word, ...] | None = None
    """Behind `NAME=`: the words between the brackets."""

    @property
    def plain(self) -> str | None:
        """Its text, if nothing of it is expanded."""
        if any(not isinstance(part, Text) for part in self.parts):
            return None
        return "".join(part.text for part in self.parts if isinstance(part, Text))

    @property
    def bare(self) -> str | None:
        """Its text, if nothing of it is quoted either."""
        quoted = any(isinstance(part, Text) and part.quoted for part in self.parts)
        return None if quoted else self.plain


@dataclass(frozen=True)
class Command:
    """The words between two operators or ends of lines."""

    words: tuple[Word, ...]
    line: int
    before: str
    """The operator before it, an end of line as well."""
    after: str
    cut: int | None = None
    """The line of a comment that ends it although the line above is continued."""
