"""Which variables a command's words set, or may set."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from verl_hpc.migration.shell.tree import Parameter, Sum, Word

ASSIGNED = re.compile(r"([A-Za-z_]\w*)(\[[^]]*\])?(\+?)=")
NAME = re.compile(r"[A-Za-z_]\w*")
_SET_IN_SUM = re.compile(
    r"(?:\+\+|--)\s*([A-Za-z_]\w*)"
    r"|([A-Za-z_]\w*)(?:\[[^]]*\])?\s*(?:\+\+|--|(?:[-+*/%&|^]|<<|>>)?=(?!=))"
)
"""`++NAME`, `NAME++`, `NAME += 1` and its like; no comparison."""
_WITHIN = re.compile(r"([A-Za-z_]\w*)\+?=")


def are_assignments(words: Sequence[Word]) -> bool:
    return all(ASSIGNED.match(word.source) for word in words)


def sets_arguments(words: Iterable[Word]) -> bool:
    """Whether `set` gives more than options."""
    of_option = False
    for word in words:
        if word.bare == "--" or not (of_option or word.source.startswith(("-", "+"))):
            return True
        of_option = not of_option and word.source.endswith("o")
    return False


def quoted_names(words: Iterable[Word]) -> set[str]:
    """The variables that words which are no assignments may set: `"NAME=value"`, `$(...)`."""
    others = (word.source for word in words if not ASSIGNED.match(word.source))
    return {name for source in others for name in _WITHIN.findall(source)}


def set_in_sum(text: str) -> set[str]:
    """The variables that `((NAME++))` and `((NAME = 1))` set."""
    return {before or behind for before, behind in _SET_IN_SUM.findall(text)}


def counted(words: Iterable[Word]) -> set[str]:
    """The variables that the words' `$((NAME++))` set."""
    sums = (part.source for word in words for part in word.parts if isinstance(part, Sum))
    return {name for one in sums for name in set_in_sum(one)}


def defaults(words: Iterable[Word]) -> list[str]:
    """The variables that `${NAME:=...}` sets."""
    return [
        part.name
        for word in words
        for part in word.parts
        if isinstance(part, Parameter) and part.operator in ("=", ":=")
    ]


def without_its_environment(words: Sequence[Word]) -> Sequence[Word]:
    """A command without the `NAME=value` before it, which are its own."""
    start = next((i for i, word in enumerate(words) if not ASSIGNED.match(word.source)), 0)
    return words[start:]
