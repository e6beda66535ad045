"""Draw charts as inline SVG. Colours are classes c0, c1, ... of the page's style sheet."""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import mean

from verl_hpc.metrics.series import Point, axis_range, clamp, smooth, thin
from verl_hpc.metrics.text import duration, number, tick_labels

LEFT, RIGHT, TOP, BOTTOM = 62, 14, 8, 22
"""Pixels around the axes, for tick labels: -9.995e-5 on the left."""
MAX_POINTS = 200
"""Most points of one curve; a chart is about 300 pixels wide."""
SMOOTHED_FROM = 30
"""Points of a curve from which on a wide chart shows its average."""

BandPoint = tuple[float, float, float]
"""Place on the horizontal axis, least and largest value."""
Bar = tuple[str, Mapping[str, float]]
"""Step or steps of a bar, and seconds by operator."""


@dataclass(frozen=True)
class Frame:
    """Maps data to pixels of a picture of width x height."""

    width: int
    height: int
    x_range: tuple[float, float]
    y_range: tuple[float, float]

    def x(self, value: float) -> float:
        low, high = self.x_range
        return LEFT + (value - low) / (high - low) * (self.width - LEFT - RIGHT)

    def y(self, value: float) -> float:
        low, high = self.y_range
        value = clamp(value, self.y_range)
        return self.height - BOTTOM - (value - low) / (high - low) * (self.height - TOP - BOTTOM)


def line_chart(
    title: str,
    curves: Mapping[str, Sequence[Point]],
    limits: tuple[float | None, float | None] = (None, None),
    width: int = 300,
    across: str = "step",
    bands: Mapping[str, Sequence[BandPoint]] | None = None,
) -> str:
    """Draw curves over steps; hovering over a step shows its values.

    A wide chart of many steps shows moving averages, with the curves themselves in pale.

    Args:
        title: label for screen readers.
        curves: points by label.
        limits: least and largest value of the vertical axis; points beyond are drawn at its end.
        width: width in pixels.
        across: what the horizontal axis has.
        bands: ranges around the curves of these labels.
    """
    bands = bands or {}
    thinned = {label: thin(curve, MAX_POINTS) for label, curve in curves.items()}
    every = [point for curve in thinned.values() for point in curve]
    x_range = axis_range([step for step, _ in every], 0.0)
    ends = [end for band in bands.values() for _, *both in band for end in both]
    y_range = axis_range([*(value for _, value in every), *ends], 0.06, limits)
    frame = Frame(width, 150, x_range, y_range)
    pale: dict[str, list[Point]] = {}
    drawn = thinned
    if width > 300 and len(every) > SMOOTHED_FROM * len(curves):
        pale = thinned
        drawn = {label: thin(smooth(curve), MAX_POINTS) for label, curve in curves.items()}
    marks = ticks(frame.x_range, 5)
    marks = [tick for tick in marks if tick == int(tick)] if across == "step" else marks
    words = [_place(x, across) for x in marks] if across == "step" else tick_labels(marks)
    places = zip(marks, words, strict=True)
    colours = {label: f"c{i}" for i, label in enumerate(drawn)}
    return picture(
        title,
        frame.width,
        frame.height,
        [
            *horizontal_grid(frame),
            *(text(frame.x(x), frame.height - 6, word, "middle") for x, word in places),
            *(_band(frame, band, colours[label]) for label, band in bands.items()),
            *(_curve(frame, curve, f"c{i} pale") for i, curve in enumerate(pale.values())),
            *(_curve(frame, curve, f"c{i}") for i, curve in enumerate(drawn.values())),
            *_hovers(frame, thinned, across),
        ],
    )


def stacked_bars(title: str, bars: Sequence[Bar], colours: Mapping[str, str]) -> str:
    """Draw a bar per stretch of steps, with operators stacked in the order of `colours`."""
    top = max(sum(seconds.values()) for _, seconds in bars)
    frame = Frame(824, 220, (0.0, max(len(bars), 6)), (0.0, top * 1.04 or 1.0))
    every = -(-len(bars) // 8)
    labelled = [(i, bars[i][0].partition("-")[0]) for i in range(0, len(bars), every)]
    return picture(
        title,
        frame.width,
        frame.height,
        [
            *horizontal_grid(frame, "s"),
            *(text(frame.x(i + 0.5), frame.height - 6, label, "middle") for i, label in labelled),
            *(_stack(frame, i, bar, colours) for i, bar in enumerate(bars)),
        ],
    )


def ticks(span: tuple[float, float], count: int) -> list[float]:
    """Return about `count` round numbers inside a range: (0, 17), 4 gives [0, 5, 10, 15]."""
    low, high = span
    rough = (high - low) / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = min((power, 2 * power, 5 * power, 10 * power), key=lambda s: abs(s - rough))
    return [i * step for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def picture(label: str, width: int, height: int, parts: Iterable[str]) -> str:
    """Return a whole chart, as wide as its page allows; `label` is for screen readers."""
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-label="{html.escape(label)}">'
        f"{''.join(parts)}</svg>"
    )


def horizontal_grid(frame: Frame, unit: str = "") -> Iterator[str]:
    """Draw lines at round values with their labels."""
    values = ticks(frame.y_range, 4)
    for value, label in zip(values, tick_labels(values), strict=True):
        y = frame.y(value)
        yield f'<path class="grid" d="M{LEFT} {y:.1f}H{frame.width - RIGHT}"/>'
        yield text(LEFT - 6, y + 3.5, label + unit, "end")


def text(x: float, y: float, words: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{html.escape(words)}</text>'


def _curve(frame: Frame, curve: Sequence[Point], colour: str) -> str:
    pixels = [(f"{frame.x(step):.1f}", f"{frame.y(value):.1f}") for step, value in curve]
    if not pixels:
        return ""
    if len(pixels) == 1:
        x, y = pixels[0]
        return f'<circle class="dot {colour}" cx="{x}" cy="{y}" r="3"/>'
    return f'<path class="curve {colour}" d="M{"L".join(map(" ".join, pixels))}"/>'


def _place(x: float, across: str) -> str:
    return f"{x:,.0f}" if across == "step" else number(x)


def _band(frame: Frame, band: Sequence[BandPoint], colour: str) -> str:
    above = [f"{frame.x(x):.1f} {frame.y(high):.1f}" for x, _, high in band]
    below = [f"{frame.x(x):.1f} {frame.y(low):.1f}" for x, low, _ in reversed(band)]
    return f'<path class="band {colour}" d="M{"L".join([*above, *below])}Z"/>'


def _hovers(frame: Frame, curves: Mapping[str, Sequence[Point]], across: str) -> Iterator[str]:
    """Draw an invisible column per step that shows a guide and a tooltip under the pointer."""
    by_step: dict[float, dict[str, float]] = {}
    for label, curve in curves.items():
        for step, value in curve:
            by_step.setdefault(step, {})[label] = value
    steps = sorted(by_step)
    centres = [frame.x(step) for step in steps]
    edges = [LEFT, *map(mean, pairwise(centres)), frame.width - RIGHT]
    for step, x, (left, right) in zip(steps, centres, pairwise(edges), strict=True):
        told = "".join(f"\n{label} {number(v)}" for label, v in by_step[step].items())
        yield (
            f'<g class="hover"><rect x="{left:.1f}" y="{TOP}" width="{right - left:.1f}" '
            f'height="{frame.height - TOP - BOTTOM}"/>'
            f'<path d="M{x:.1f} {TOP}V{frame.height - BOTTOM}"/>'
            f"<title>{across} {_place(step, across)}{html.escape(told)}</title></g>"
        )


def _stack(frame: Frame, index: int, bar: Bar, colours: Mapping[str, str]) -> str:
    label, seconds = bar
    x, width = frame.x(index + 0.1), frame.x(index + 0.9) - frame.x(index + 0.1)
    drawn = []
    below = 0.0
    for name, colour in colours.items():
        spent = seconds.get(name, 0.0)
        y = frame.y(below + spent)
        drawn.append(
            f'<rect class="{colour}" x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" '
            f'height="{frame.y(below) - y:.1f}"/>'
        )
        below += spent
    told = "".join(f"\n{name} {duration(spent)}" for name, spent in seconds.items())
    return f"<g>{''.join(drawn)}<title>{html.escape(f'step {label}{told}')}</title></g>"
