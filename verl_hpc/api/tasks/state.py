"""State of a training as a checkpoint holds it: numbers by names with slashes."""

from __future__ import annotations

from collections.abc import Mapping


def joined(parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Return one mapping of several: each number's name behind that of its part."""
    return {f"{part}/{name}": n for part, numbers in parts.items() for name, n in numbers.items()}


def split(numbers: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """Return the parts that `joined` has put together, but for those without numbers."""
    parts: dict[str, dict[str, float]] = {}
    for name, number in numbers.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = number
    return parts
