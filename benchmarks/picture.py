"""Curves of several runs in one picture: an SVG file that needs no style sheet beside it."""

from __future__ import annotations

import html
from collections.abc import Iterator, Mapping, Sequence

from verl_hpc.metrics.series import Point, axis_range
from verl_hpc.metrics.svg import LEFT, RIGHT, Frame, text, ticks
from verl_hpc.metrics.text import tick_labels

WIDTH, HEIGHT, LABELS = 620, 420, 220
"""Pixels of the curves with their axes, and of the labels at the right of them."""
LINE = 17
"""Pixels from one label to the next, at least."""
COLOURS = (
    *("#1f77b4", "#d95f02", "#1b9e77", "#c2185b", "#6a4fb3"),
    *("#8c6d1f", "#e0a100", "#17a2b8", "#7f7f7f", "#3b3b3b"),
)
DASHES = ("none", "7 3", "2 3")
STYLE = (
    "svg{background:#fff;font:12px sans-serif}text{fill:#444}.grid{stroke:#e3e2de}"
    ".curve{fill:none;stroke-width:2;stroke-linejoin:round}.lead{fill:none;stroke-width:.75}"
)


def picture_of(title: str, curves: Mapping[str, Sequence[Point]], x: str, y: str) -> str:
    """The text of an SVG file.

    Args:
        title: what it shows, for those who do not see it.
        curves: by label; each has a point or more.
        x, y: what the axes are, with units.
    """
    points = [point for curve in curves.values() for point in curve]
    x_range = axis_range([step for step, _ in points], 0.0)
    y_range = axis_range([value for _, value in points], 0.04)
    frame = Frame(WIDTH, HEIGHT, x_range, y_range)
    heights = spread([frame.y(curve[-1][1]) for curve in curves.values()], LINE)
    drawn = [
        part
        for number, (label, curve) in enumerate(curves.items())
        for part in _curve(frame, label, curve, number, heights[number])
    ]
    size = f"{WIDTH + LABELS} {HEIGHT + 20}"
    parts = "\n".join([*_axes(frame, x, y), *drawn])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size}" role="img" '
        f'aria-label="{html.escape(title)}">\n<style>{STYLE}</style>\n{parts}\n</svg>\n'
    )


def spread(heights: Sequence[float], distance: float) -> list[float]:
    """The heights, moved apart: in the same order, each near where it was.

    Args:
        heights: in pixels.
        distance: of two neighbours, at least.
    """
    order = sorted(range(len(heights)), key=lambda i: heights[i])
    blocks: list[list[float]] = []  # of neighbours that touch: the middle of the first, how many
    for i in order:
        blocks.append([heights[i], 1])
        while len(blocks) > 1 and blocks[-1][0] < blocks[-2][0] + blocks[-2][1] * distance:
            (below, n), (above, m) = blocks.pop(-2), blocks.pop()
            blocks.append([(n * below + m * (above - n * distance)) / (n + m), n + m])
    placed = [first + k * distance for first, count in blocks for k in range(int(count))]
    return [height for _, height in sorted(zip(order, placed, strict=True))]


def _axes(frame: Frame, x: str, y: str) -> Iterator[str]:
    values = ticks(frame.y_range, 6)
    for value, label in zip(values, tick_labels(values), strict=True):
        at = frame.y(value)
        yield f'<path class="grid" d="M{LEFT} {at:.1f}H{frame.width - RIGHT}"/>'
        yield text(LEFT - 8, at + 4, label, "end")
    for step in ticks(frame.x_range, 6):
        yield text(frame.x(step), frame.height - 4, f"{step:,.0f}", "middle")
    yield text((LEFT + frame.width - RIGHT) / 2, frame.height + 14, x, "middle")
    yield f'<g transform="translate(16 {frame.height / 2:.0f}) rotate(-90)">'
    yield f"{text(0, 0, y, 'middle')}</g>"


def _curve(
    frame: Frame, label: str, curve: Sequence[Point], number: int, height: float
) -> Iterator[str]:
    """One curve, and its label at `height` pixels from the top."""
    colour = COLOURS[number % len(COLOURS)]
    dashes = DASHES[number % len(DASHES)]
    pixels = [f"{frame.x(step):.1f} {frame.y(value):.1f}" for step, value in curve]
    yield (
        f'<path class="curve" stroke="{colour}" stroke-dasharray="{dashes}" '
        f'd="M{"L".join(pixels)}"/>'
    )
    begin = frame.width - RIGHT
    yield f'<path class="lead" stroke="{colour}" d="M{pixels[-1]}L{begin + 12} {height:.1f}"/>'
    yield (
        f'<path class="curve" stroke="{colour}" stroke-dasharray="{dashes}" '
        f'd="M{begin + 14} {height:.1f}h26"/>'
    )
    words = html.escape(f"{curve[-1][1]:.2f}  {label}")
    yield f'<text x="{begin + 46}" y="{height + 4:.1f}" style="fill:{colour}">{words}</text>'
