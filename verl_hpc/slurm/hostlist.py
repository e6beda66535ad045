"""Slurm's compact lists of hosts."""

from __future__ import annotations

import re
from collections.abc import Iterator

from verl_hpc.errors import ClusterError

_GROUP = re.compile(r"[^,\[\]]+(?:\[[0-9,-]+\][^,\[\]]*)*")
_RANGES = re.compile(r"\[([0-9,-]+)\]")


def expand_hosts(text: str) -> list[str]:
    """Host names of a list: `n[0-2,08],login` gives n0, n1, n2, n08 and login.

    Raises:
        ClusterError: it is not a host list.
    """
    hosts: list[str] = []
    position = 0
    while position < len(text):
        match = _GROUP.match(text, position)
        if match is None or (match.end() < len(text) and text[match.end()] != ","):
            raise ClusterError(f"{text!r} is not a Slurm host list, such as n[0-3,7],m1")
        hosts += _expand(match.group())
        position = match.end() + 1
    return hosts


def _expand(pattern: str) -> Iterator[str]:
    match = _RANGES.search(pattern)
    if match is None:
        yield pattern
        return
    for number in _numbers(match.group(1)):
        yield from _expand(pattern[: match.start()] + number + pattern[match.end() :])


def _numbers(ranges: str) -> Iterator[str]:
    for part in ranges.split(","):
        first, _, last = part.partition("-")
        for number in range(int(first), int(last or first) + 1):
            # Padding is part of the name: n[08-10] is n08, n09, n10.
            yield f"{number:0{len(first)}d}"
