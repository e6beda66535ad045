"""What training goes on from, as a checkpoint holds it: numbers by names whose parts are joined by
slashes."""

from __future__ import annotations

from collections.abc import Mapping


def joined(parts: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """One mapping of several: each number's name behind that of its part."""
    return {f"{part}/{name}": n for part, numbers in parts.items() for name, n in numbers.items()}


def split(numbers: Mapping[str, float]) -> dict[str, dict[str, float]]:
    """The parts that `joined` has put together, but for those without numbers."""
    parts: dict[str, dict[str, float]] = {}
    for name, number in numbers.items():
        part, _, rest = name.partition("/")
        parts.setdefault(part, {})[rest] = number
    return parts
