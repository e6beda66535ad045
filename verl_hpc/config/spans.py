"""Whole numbers, such as ranks or cores, as people and the kernel write them: 0-3,8."""

from __future__ import annotations

from collections.abc import Iterable


def spans(numbers: Iterable[int], separator: str = ", ") -> str:
    """Write numbers in short: '0-2, 5'."""
    parts: list[list[int]] = []
    for number in sorted(numbers):
        if parts and number == parts[-1][1] + 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return separator.join(f"{a}" if a == b else f"{a}-{b}" for a, b in parts)


def parse_spans(text: str) -> set[int]:
    """Return the numbers of a text made by `spans`, whatever its separator has beside the comma."""
    numbers: set[int] = set()
    for part in filter(None, text.strip().split(",")):
        first, _, last = part.partition("-")
        numbers |= set(range(int(first), int(last or first) + 1))
    return numbers
