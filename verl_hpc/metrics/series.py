"""Turn the rows of metrics.jsonl into points and bars to draw."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from verl_hpc.metrics.log import Row
from verl_hpc.metrics.names import ENERGY, STEP_SECONDS, TIMING, WAIT, Chart

Point = tuple[float, float]
"""Step, or another place on a chart's horizontal axis, and value."""
OTHER = "other"
"""Name of the time that no listed operator took."""


def points(rows: Sequence[Row], name: str) -> list[Point]:
    """Return a metric over the steps that have it, without its nulls."""
    return [(row["step"], row[name]) for row in rows if row.get(name) is not None]


def curves(chart: Chart, rows: Sequence[Row]) -> dict[str, list[Point]]:
    """Return points by label. A metric that is absent, or equal to one before it, has no curve."""
    by_label: dict[str, list[Point]] = {}
    for name, label in chart.curves.items():
        curve = points(rows, name)
        if curve and curve not in by_label.values():
            by_label[label] = curve
    return by_label


def thin(curve: Sequence[Point], limit: int) -> list[Point]:
    """Return at most `limit` points that keep every visible peak: lowest and highest of each
    stretch."""
    if len(curve) <= limit:
        return list(curve)
    stretches = limit // 2
    kept: list[Point] = []
    for i in range(stretches):
        first = i * len(curve) // stretches
        part = curve[first : (i + 1) * len(curve) // stretches]
        ends = {min(part, key=lambda p: p[1]), max(part, key=lambda p: p[1])}
        kept += sorted(ends)
    return kept


def smooth(curve: Sequence[Point], weight: float = 0.9) -> list[Point]:
    """Return the exponential moving average, corrected for its start as in Adam (arXiv 1412.6980,
    section 3): each point is a weighted mean of those up to it, the newest with the largest
    weight."""
    total = norm = 0.0
    averaged: list[Point] = []
    for step, value in curve:
        total = weight * total + (1 - weight) * value
        norm = weight * norm + (1 - weight)
        averaged.append((step, total / norm))
    return averaged


def axis_range(
    values: Sequence[float], margin: float, limits: tuple[float | None, float | None] = (None, None)
) -> tuple[float, float]:
    """Return the range of values, wider by `margin` of itself on both sides, but not beyond the
    limits.

    It is never empty: around one value it is a fifth of that, around zero 0 to 1. With a margin it
    is also never so narrow that its ticks would differ beyond the fourth digit.
    """
    low, high = (clamp(value, limits) for value in (min(values), max(values)))
    if low == high == 0:
        return 0.0, 1.0
    largest = max(abs(low), abs(high))
    pad = max(high - low, largest / 30) * margin if high > low else largest * 0.1
    return clamp(low - pad, limits), clamp(high + pad, limits)


def clamp(value: float, limits: tuple[float | None, float | None]) -> float:
    """Return the value, or the limit that it is beyond."""
    floor, ceiling = limits
    value = value if floor is None else max(value, floor)
    return value if ceiling is None else min(value, ceiling)


def operator_seconds(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the seconds of one step by top-level operator; `other` is the rest of the step, if it
    is more than 1 %."""
    seconds = {
        name.removeprefix(TIMING): value
        for name, value in values.items()
        if name.startswith(TIMING) and name.count("/") == 1 and value is not None
    }
    step = seconds.pop(STEP_SECONDS.removeprefix(TIMING), 0.0)
    rest = step - sum(seconds.values())
    return {**seconds, OTHER: rest} if rest > 0.01 * step else seconds


def operator_joules(values: Mapping[str, float | None]) -> dict[str, float]:
    """Return the joules of one step by meter and operator, as `nvml/rollout`; empty without
    meters."""
    return {
        name.removeprefix(ENERGY): value
        for name, value in values.items()
        if name.startswith(ENERGY) and value is not None
    }


def overlaps(rows: Iterable[Mapping[str, float | None]]) -> bool:
    """Whether seconds by operator are the longest of all ranks, and sum to more than a step."""
    return any(TIMING + WAIT in row for row in rows)


def mean_seconds(rows: Sequence[Row]) -> dict[str, float]:
    """Return the seconds by operator of a mean step, longest first."""
    total: dict[str, float] = {}
    for row in rows:
        for name, seconds in operator_seconds(row).items():
            total[name] = total.get(name, 0.0) + seconds
    longest_first = sorted(total, key=total.__getitem__, reverse=True)
    return {name: total[name] / len(rows) for name in longest_first}


def timed(rows: Iterable[Row]) -> list[Row]:
    """Return the rows of steps that were trained, without those that only evaluate."""
    return [row for row in rows if row.get(STEP_SECONDS) is not None]


def fold(seconds: Mapping[str, float], names: Sequence[str]) -> dict[str, float]:
    """Return the seconds of `names` in that order, then the sum of all others as `other`."""
    rest = sum(spent for name, spent in seconds.items() if name not in names)
    named = {name: seconds[name] for name in names if name in seconds}
    return {**named, OTHER: rest} if rest else named


def bins(rows: Sequence[Row], limit: int) -> list[Sequence[Row]]:
    """Cut rows into at most `limit` stretches of equal length, the last one shorter."""
    length = -(-len(rows) // limit)
    return [rows[i : i + length] for i in range(0, len(rows), length)] if rows else []
