"""Draw what ranks did side by side, as inline SVG: a lane per rank, with a bar for each
operator."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape

from verl_hpc.metrics.svg import BOTTOM, LEFT, RIGHT, Frame, picture, text, ticks
from verl_hpc.metrics.text import duration, number
from verl_hpc.metrics.timeline import Interval

WIDTH = 824
_TOP = 8
_HEADING = 20
"""Height of a group's name in pixels."""
_LOWEST, _HIGHEST = 14, 24
"""Least and largest height of a lane in pixels, with the gap to the next."""
_READABLE = 16
"""Height in pixels from which on bars have room for their steps."""
_LANES = 240
"""Pixels that the lanes share if they are few."""
_DIGIT = 6.5
"""Width of a digit in pixels."""
_NARROW = 0.5
"""Width of the narrowest bar in pixels; of bars that would hide each other one is drawn."""


@dataclass(frozen=True)
class Lane:
    """Intervals of one rank; lanes of a group stand below its name."""

    name: str
    intervals: Sequence[Interval]
    group: str = ""


def lanes(
    title: str,
    rows: Sequence[Lane],
    colours: Mapping[str, str],
    other: str,
    marks: Mapping[str, float],
) -> str:
    """Draw one lane per rank, with its operators over time.

    Args:
        title: label for screen readers.
        rows: lanes, with times from a common zero.
        colours: classes of the style sheet by operator.
        other: class for other operators.
        marks: moments by the words above them.
    """
    every = [interval for row in rows for interval in row.intervals]
    low, high = min(one.start for one in every), max(one.stop for one in every)
    height = min(max(_LANES // len(rows), _LOWEST), _HIGHEST)
    top = _TOP + (_HEADING if marks else 0)
    placed, bottom = _place(rows, top, height)
    frame = Frame(WIDTH, bottom + BOTTOM, (low, high if high > low else low + 1.0), (0.0, 1.0))
    parts = [
        *(
            text(frame.x(tick), frame.height - 6, f"{number(tick)}s", "middle")
            for tick in ticks(frame.x_range, 8)
        ),
        *_marks(frame, marks, bottom),
    ]
    for row, y, is_first in placed:
        if is_first and row.group:
            parts.append(
                f'<text class="group" x="{LEFT + 4}" y="{y - 6}">{escape(row.group)}</text>'
            )
        parts.append(text(LEFT - 6, y + height / 2 + 4, row.name, "end"))
        middle = y + height / 2
        parts.append(f'<path class="grid" d="M{LEFT} {middle:.1f}H{WIDTH - RIGHT}"/>')
        parts += _bars(frame, y, height, row, colours, other)
    return picture(title, WIDTH, frame.height, parts)


def _place(rows: Sequence[Lane], top: int, height: int) -> tuple[list[tuple[Lane, int, bool]], int]:
    """Return each lane with its upper edge and whether it is the first of its group, and the lower
    edge of all."""
    placed: list[tuple[Lane, int, bool]] = []
    group, y = "", top
    for row in rows:
        is_first = not placed or row.group != group
        y += _HEADING if is_first and row.group else 0
        placed.append((row, y, is_first))
        group, y = row.group, y + height
    return placed, y


def _marks(frame: Frame, marks: Mapping[str, float], bottom: int) -> Iterator[str]:
    """Draw a line at each moment, and its words if they have room."""
    free = 0.0
    for words, moment in sorted(marks.items(), key=lambda mark: mark[1]):
        x = frame.x(moment)
        yield f'<path class="mark" d="M{x:.1f} {_TOP}V{bottom}"/>'
        if x >= free and x + len(words) * _DIGIT < frame.width:
            yield text(x + 4, _TOP + 9, words, "start")
            free = x + len(words) * _DIGIT + 8


def _bars(
    frame: Frame, y: int, height: int, row: Lane, colours: Mapping[str, str], other: str
) -> Iterator[str]:
    drawn = float("-inf")
    for one in row.intervals:
        x, end = frame.x(one.start), frame.x(one.stop)
        if end < drawn + _NARROW:
            continue
        drawn = end
        width = max(end - x - _NARROW, _NARROW)
        told = escape(f"step {one.step}, {one.operator}, {duration(one.stop - one.start)}")
        yield (
            f'<rect class="{colours.get(one.operator, other)}" x="{x:.1f}" y="{y + 1}" '
            f'width="{width:.1f}" height="{height - 2}"><title>{told}</title></rect>'
        )
        if height >= _READABLE and (words := _inside(one, width)):
            yield (
                f'<text class="in" x="{x + width / 2:.1f}" y="{y + height / 2 + 4:.1f}" '
                f'text-anchor="middle">{escape(words)}</text>'
            )


def _inside(one: Interval, width: float) -> str:
    """Return the step and the operator, or only the step, whichever has room."""
    choices = (f"{one.step} {one.operator}", f"{one.step}")
    return next((words for words in choices if len(words) * _DIGIT + 4 < width), "")
